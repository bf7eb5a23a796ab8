// JSON as text, never parsed: 64-bit numbers survive, a payload that was cut is shown as far as it goes, and what a path names
// is redacted before anything of it is printed. Pure.

export interface JsonTextOptions {
  /** Paths whose values are hidden: `account.iban`; items of a list go by the list's name. */
  readonly redact: readonly string[];
  /** One member a line. */
  readonly pretty: boolean;
}

export interface JsonText {
  readonly text: string;
  /** Paths that were found and hidden. */
  readonly redacted: readonly string[];
}

const token = /\s+|"(?:[^"\\]|\\[\s\S])*(?:"|\\?$)|[{}[\],:]|[^\s{}[\],:"]+/g;

/** What stands for a hidden value. A JSON text of its own, so that the whole stays JSON. */
const hidden = '"redacted"';

/** Deeper ones stand no further to the right: a payload of ten thousand brackets would be a page of 200 MB. */
const maxIndent = 16;

interface Frame {
  readonly list: boolean;
  /** Path of the object or list itself. */
  readonly path: string;
  key: string;
  empty: boolean;
}

/**
 * Prints JSON text anew, with the values of the named paths replaced by `"redacted"`.
 *
 * Shape:  JSON text, perhaps cut anywhere -> JSON text, cut at the same place.
 */
export function jsonText(source: string, { redact, pretty }: JsonTextOptions): JsonText {
  const wanted = new Set(redact);
  const stack: Frame[] = [];
  const found = new Set<string>();
  let out = "";
  /** Depth of nesting below which nothing is printed: a hidden object or list. */
  let hiddenAt = Number.POSITIVE_INFINITY;
  let expectsKey = false;

  const print = (text: string) => {
    if (stack.length < hiddenAt) out += text;
  };
  const newLine = () => {
    if (pretty) print(`\n${"  ".repeat(Math.min(stack.length, maxIndent))}`);
  };
  /** Before a value: its path; prints the stand-in if it is to be hidden. */
  const startsHidden = (): boolean => {
    const path = pathOf(stack.at(-1));
    if (path === "" || !wanted.has(path) || stack.length >= hiddenAt) return false;
    found.add(path);
    print(hidden);
    return true;
  };
  const beforeItem = () => {
    const frame = stack.at(-1);
    if (frame === undefined) return;
    if (frame.list || expectsKey) {
      if (frame.empty) newLine();
      frame.empty = false;
    }
  };

  for (const [piece] of source.matchAll(token)) {
    if (/^\s/.test(piece)) continue;
    switch (piece[0]) {
      case "{":
      case "[": {
        beforeItem();
        const hide = startsHidden();
        const path = pathOf(stack.at(-1));
        if (!hide) print(piece);
        stack.push({ list: piece === "[", path, key: "", empty: true });
        if (hide) hiddenAt = stack.length;
        expectsKey = piece === "{";
        break;
      }
      case "}":
      case "]": {
        const frame = stack.pop();
        if (hiddenAt === stack.length + 1) hiddenAt = Number.POSITIVE_INFINITY;
        else {
          if (frame?.empty === false) newLine();
          print(piece);
        }
        expectsKey = false;
        break;
      }
      case ",":
        print(pretty ? "," : ", ");
        newLine();
        expectsKey = stack.at(-1)?.list === false;
        break;
      case ":":
        print(": ");
        expectsKey = false;
        break;
      default: {
        beforeItem();
        const frame = stack.at(-1);
        if (expectsKey && frame !== undefined) {
          frame.key = nameOf(piece);
          print(piece);
        } else if (!startsHidden()) print(piece);
      }
    }
  }
  return { text: out, redacted: [...found] };
}

/** Path of the value that comes next inside this frame. */
function pathOf(frame: Frame | undefined): string {
  if (frame === undefined) return "";
  if (frame.list) return frame.path;
  return frame.path === "" ? frame.key : `${frame.path}.${frame.key}`;
}

/** A key's name: its escapes are read, so that `"\u0069ban"` hides nothing. */
function nameOf(piece: string): string {
  try {
    const name: unknown = JSON.parse(piece);
    return typeof name === "string" ? name : piece;
  } catch {
    return piece; // cut in its middle
  }
}
