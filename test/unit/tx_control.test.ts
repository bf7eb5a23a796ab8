import { describe, expect, it } from "vitest";
import { transactionControl } from "../../src/tx_control.ts";

describe("transactionControl", () => {
  it.each([
    ["commit", "COMMIT"],
    ["  COMMIT AND CHAIN", "COMMIT"],
    [";; commit", "COMMIT"],
    ["-- a comment\ncommit", "COMMIT"],
    ["-- a comment\rrollback", "ROLLBACK"],
    ["/* a */ rollback to x", "ROLLBACK"],
    ["/* a /* nested */ still */ savepoint x", "SAVEPOINT"],
    ["/**/--\n;/**/abort", "ABORT"],
    ["begin", "BEGIN"],
    ["start  \n transaction", "START TRANSACTION"],
    ["end", "END"],
    ["release savepoint x", "RELEASE"],
    ["prepare transaction 'x'", "PREPARE TRANSACTION"],
    ["set transaction isolation level serializable", "SET TRANSACTION"],
    ["set local transaction read only", "SET LOCAL TRANSACTION"],
    ["set session characteristics as transaction read only", "SET SESSION CHARACTERISTICS"],
  ])("finds %j", (statement, command) => {
    expect(transactionControl(statement)).toBe(command);
  });

  it.each([
    "select 'commit'",
    "insert into commits values (1)",
    "select 1 -- commit",
    "endow()",
    "set local statement_timeout = 1",
    "set transaction_timeout = 1",
    "prepare q as select 1",
    "",
    "--",
    "/* never closed commit",
  ])("leaves %j alone", (statement) => {
    expect(transactionControl(statement)).toBeNull();
  });
});
