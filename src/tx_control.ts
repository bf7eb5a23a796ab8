// Which statements a handler may not send: the transaction belongs to the tick, and with it everybody's effects. Pure.

const control =
  /^(begin|start\s+transaction|commit|end|rollback|abort|savepoint|release|prepare\s+transaction|set\s+(local\s+|session\s+)?transaction|set\s+session\s+characteristics)\b/i;

/** The transaction command a statement begins with, in upper case, or null. Comments and empty statements are no disguise. */
export function transactionControl(statement: string): string | null {
  const match = control.exec(withoutPreamble(statement));
  return match?.[1] === undefined ? null : match[1].toUpperCase().replaceAll(/\s+/g, " ");
}

/** Drops leading white space, semicolons and comments; block comments nest in Postgres. */
function withoutPreamble(statement: string): string {
  let at = 0;
  for (;;) {
    while (at < statement.length && /[\s;]/.test(statement[at] ?? "")) at++;
    if (statement.startsWith("--", at)) {
      const end = statement.slice(at).search(/[\r\n]/);
      if (end === -1) return "";
      at += end;
    } else if (statement.startsWith("/*", at)) {
      let depth = 0;
      do {
        if (statement.startsWith("/*", at)) {
          depth++;
          at += 2;
        } else if (statement.startsWith("*/", at)) {
          depth--;
          at += 2;
        } else {
          at++;
        }
      } while (depth > 0 && at < statement.length);
    } else {
      return statement.slice(at);
    }
  }
}
