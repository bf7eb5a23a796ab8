// A strict reader of Prometheus' text format 0.0.4: what a scrape would refuse or silently misread is an error here.
// Source: Prometheus documentation, "Exposition formats"; the order of lines, the names and the escapes are checked as well.

export interface Scraped {
  readonly name: string;
  readonly type: "gauge" | "counter" | "histogram";
  readonly help: string;
  readonly samples: readonly ScrapedSample[];
}

export interface ScrapedSample {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

export function parsePrometheus(text: string): Map<string, Scraped> {
  if (!text.endsWith("\n")) throw new Error("the last line has no end");
  const families = new Map<string, Scraped & { samples: ScrapedSample[] }>();
  let family: (Scraped & { samples: ScrapedSample[] }) | null = null;
  let help: { name: string; text: string } | null = null;
  const seen = new Set<string>();
  for (const [i, line] of text.slice(0, -1).split("\n").entries()) {
    const wrong = (why: string) => new Error(`line ${i + 1}: ${why}: ${JSON.stringify(line)}`);
    const comment = /^# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)$/.exec(line);
    if (comment !== null) {
      const [, word, name = "", rest = ""] = comment;
      if (word === "HELP") {
        if (families.has(name) || help !== null) throw wrong("HELP twice or without its TYPE");
        if (/\\(?![\\n])/.test(rest)) throw wrong("an escape nobody knows");
        help = { name, text: rest.replaceAll("\\n", "\n").replaceAll("\\\\", "\\") };
        continue;
      }
      if (help?.name !== name) throw wrong("TYPE without the HELP of the same metric before it");
      if (rest !== "gauge" && rest !== "counter" && rest !== "histogram") throw wrong("unknown type");
      family = { name, type: rest, help: help.text, samples: [] };
      families.set(name, family);
      help = null;
      continue;
    }
    if (line.startsWith("#") || line.trim() === "") throw wrong("neither HELP, TYPE nor a sample");
    if (family === null || help !== null) throw wrong("a sample before its TYPE");
    const sample = readSample(line, wrong);
    const suffix = sample.name.slice(family.name.length);
    const suffixes = family.type === "histogram" ? ["_bucket", "_sum", "_count"] : [""];
    if (!sample.name.startsWith(family.name) || !suffixes.includes(suffix))
      throw wrong(`not a sample of ${family.name}`);
    if (family.type === "counter" && sample.value < 0) throw wrong("a counter below zero");
    const key = JSON.stringify([sample.name, Object.entries(sample.labels).sort()]);
    if (seen.has(key)) throw wrong("the same series twice");
    seen.add(key);
    family.samples.push(sample);
  }
  if (help !== null) throw new Error("HELP without TYPE at the end");
  for (const one of families.values()) {
    if (one.type === "counter" && !one.name.endsWith("_total"))
      throw new Error(`${one.name}: a counter ends in _total`);
    if (one.type !== "counter" && one.name.endsWith("_total"))
      throw new Error(`${one.name}: only counters end in _total`);
    if (one.type === "histogram") checkHistogram(one);
  }
  return families;
}

function readSample(line: string, wrong: (why: string) => Error): ScrapedSample {
  const head = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(\{)?/.exec(line);
  if (head === null) throw wrong("no metric name");
  let at = head[0].length;
  const labels: Record<string, string> = {};
  if (head[2] !== undefined) {
    for (;;) {
      // The value of a label: anything but a bare quote, backslash or line end; the three of them escaped.
      const pair = /^([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"([,}])/.exec(line.slice(at));
      if (pair === null) throw wrong(`no label at ${at}`);
      const [all, label = "", text = "", next] = pair;
      if (label in labels || label.startsWith("__")) throw wrong(`label ${label} twice or reserved`);
      labels[label] = text.replaceAll(/\\(.)/g, (_, c: string) => (c === "n" ? "\n" : c));
      at += all.length;
      if (next === "}") break;
    }
  }
  const value = /^ (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?|\+Inf|-Inf|NaN)$/.exec(line.slice(at))?.[1];
  if (value === undefined) throw wrong("no value");
  return { name: head[1] ?? "", labels, value: value.endsWith("Inf") ? Number(`${value}inity`) : Number(value) };
}

/** Buckets rise with their bounds, the last one is +Inf and equals the count; each set of labels has all three. */
function checkHistogram({ name, samples }: Scraped): void {
  const groups = new Map<string, ScrapedSample[]>();
  for (const sample of samples) {
    const { le: _, ...labels } = sample.labels;
    const key = JSON.stringify(Object.entries(labels).sort());
    groups.set(key, [...(groups.get(key) ?? []), sample]);
  }
  for (const [key, group] of groups) {
    const buckets = group.filter((sample) => sample.name === `${name}_bucket`);
    const bounds = buckets.map(({ labels }) => (labels.le === "+Inf" ? Number.POSITIVE_INFINITY : Number(labels.le)));
    const rises = (numbers: readonly number[], strictly: boolean) =>
      numbers.every((n, i) => i === 0 || (strictly ? n > (numbers[i - 1] ?? 0) : n >= (numbers[i - 1] ?? 0)));
    const count = group.find((sample) => sample.name === `${name}_count`)?.value;
    const total = group.find((sample) => sample.name === `${name}_sum`)?.value;
    const values = buckets.map(({ value }) => value);
    if (
      !rises(bounds, true) ||
      !rises(values, false) ||
      bounds.at(-1) !== Number.POSITIVE_INFINITY ||
      values.at(-1) !== count ||
      total === undefined
    )
      throw new Error(`${name}${key}: no histogram: ${JSON.stringify({ bounds, values, count, total })}`);
  }
}
