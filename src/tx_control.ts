// Which statements a handler may not send: the transaction belongs to the tick, and with it everybody's effects. Pure.

const control =
  /^(begin|start transaction|commit|end|rollback|abort|savepoint|release|prepare transaction|set (?:local |session )?transaction|set session characteristics)\b/i;

/** The transaction command a statement begins with, in upper case, or null. Comments and empty statements are no disguise. */
export function transactionControl(statement: string): string | null {
  const match = control.exec(firstWords(statement));
  return match?.[1] === undefined ? null : match[1].toUpperCase();
}

/** Whether a statement waits for rows from the client, which a query has no way to send: the session would hang. */
export function isCopyIn(statement: string): boolean {
  return /^copy\b/i.test(firstWords(statement)) && /\bfrom\s+stdin\b/i.test(statement);
}

/** The words a statement begins with, one blank between them. */
function firstWords(statement: string): string {
  const words: string[] = [];
  let at = afterBlank(statement, 0, /[\s;]/);
  // No command that is looked for has more words than this.
  while (words.length < 4) {
    const word = /^[a-z_]+/i.exec(statement.slice(at, at + 64))?.[0];
    if (word === undefined) break;
    words.push(word);
    at = afterBlank(statement, at + word.length, /\s/);
  }
  return words.join(" ");
}

/** The place after white space (as `white` has it) and comments; block comments nest in Postgres. */
function afterBlank(statement: string, from: number, white: RegExp): number {
  let at = from;
  for (;;) {
    while (at < statement.length && white.test(statement[at] ?? "")) at++;
    if (statement.startsWith("--", at)) {
      const end = statement.slice(at).search(/[\r\n]/);
      if (end === -1) return statement.length;
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
      return at;
    }
  }
}
