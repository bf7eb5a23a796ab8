// House rules as a test: the direction of flow, no cycles, one clock, one place that talks SQL, no session state.

import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { describe, expect, it } from "vitest";

const root = resolve(import.meta.dirname, "..");

/** A file imports only from lower levels, type imports included. Data goes one way: trigger, wake, ..., report. */
const levels: Record<string, number> = {
  "src/errors.ts": 0,
  "src/clock.ts": 0,
  "src/model.ts": 0,
  "src/nearest.ts": 0,
  "src/standard_schema.ts": 0,
  "src/latch.ts": 0,
  "src/tx_control.ts": 0,
  "src/workerd_socket.ts": 0,
  "src/cron.ts": 0,
  "src/database.ts": 1,
  "src/rows.ts": 1,
  "src/inspection.ts": 1,
  "src/call.ts": 2,
  "src/events.ts": 1,
  "src/telemetry.ts": 2,
  "src/observe.ts": 6,
  "src/quantile.ts": 2,
  "src/operations.ts": 5,
  "src/duration.ts": 1,
  "src/storable.ts": 1,
  "src/refusal.ts": 1,
  "src/answers.ts": 2,
  "src/key_template.ts": 2,
  "src/define.ts": 3,
  "src/limits.ts": 4,
  "src/enqueue.ts": 4,
  "src/schedule.ts": 5,
  "src/gateway.ts": 6,
  "src/postgres.ts": 7,
  "src/fence.ts": 7,
  "src/run.ts": 7,
  "src/finish.ts": 7,
  "src/report.ts": 7,
  "src/kick.ts": 8,
  "src/tick.ts": 8,
  "src/invocation.ts": 9,
  "src/claimer_options.ts": 9,
  "src/claimer.ts": 10,
  "src/neon.ts": 10,
  "src/index.ts": 11,
  "src/cli/schema_files.ts": 10,
  "src/cli/migrate.ts": 11,
  "src/cli/format.ts": 11,
  "src/cli/paging.ts": 11,
  "src/cli/output.ts": 12,
  "src/http/respond.ts": 11,
  "src/http/auth.ts": 11,
  "src/http/metrics.ts": 11,
  "src/http/body.ts": 12,
  "src/http/schemas.ts": 12,
  "src/http/schemas_jobs.ts": 13,
  "src/http/schemas_state.ts": 14,
  "src/http/requests.ts": 13,
  "src/http/route.ts": 12,
  "src/http/contract.ts": 15,
  "src/http/mount.ts": 16,
  "src/http/openapi.ts": 16,
  "src/http/reference.ts": 17,
  "src/http/routes_jobs.ts": 17,
  "src/http/routes_state.ts": 18,
  "src/http/dashboard/format.ts": 12,
  "src/http/dashboard/json_text.ts": 12,
  "src/http/dashboard/routes.ts": 12,
  "src/http/dashboard/assets/style.ts": 12,
  "src/http/dashboard/assets/script.ts": 12,
  "src/http/dashboard/faults.ts": 12,
  "src/http/dashboard/filters.ts": 13,
  "src/http/dashboard/session.ts": 12,
  "src/http/dashboard/assets.ts": 13,
  "src/http/dashboard/context.ts": 13,
  "src/http/dashboard/parts.ts": 13,
  "src/http/dashboard/chart.ts": 14,
  "src/http/dashboard/table.ts": 14,
  "src/http/dashboard/layout.ts": 14,
  "src/http/dashboard/timeline.ts": 14,
  "src/http/dashboard/ticks.ts": 14,
  "src/http/dashboard/questions.ts": 14,
  "src/http/dashboard/lists.ts": 15,
  "src/http/dashboard/deeds.ts": 15,
  "src/http/dashboard/pages/overview.ts": 16,
  "src/http/dashboard/pages/login.ts": 16,
  "src/http/dashboard/pages/job.ts": 16,
  "src/http/dashboard/pages/dead.ts": 16,
  "src/http/dashboard/pages/keys.ts": 16,
  "src/http/dashboard/pages/schedules.ts": 16,
  "src/http/dashboard/pages/invocations.ts": 16,
  "src/http/dashboard/pages/holders.ts": 16,
  "src/http/dashboard/pages/jobs.ts": 17,
  "src/http/dashboard/app.ts": 18,
  "src/http/app.ts": 19,
  "src/client.ts": 16,
  "src/adapters/environment.ts": 20,
  "src/adapters/node.ts": 21,
  "src/adapters/cloudflare.ts": 21,
  "src/adapters/vercel.ts": 21,
  "src/cli/connect.ts": 25,
  "src/cli/job_view.ts": 25,
  "src/cli/command.ts": 26,
  "src/cli/filter.ts": 27,
  "src/cli/http.ts": 27,
  "src/cli/operate.ts": 28,
  "src/cli/doctor/finding.ts": 21,
  "src/cli/doctor/probe.ts": 21,
  "src/cli/doctor/connection.ts": 22,
  "src/cli/doctor/server.ts": 22,
  "src/cli/doctor/schema.ts": 22,
  "src/cli/doctor/privileges.ts": 22,
  "src/cli/doctor/storage.ts": 22,
  "src/cli/doctor/work.ts": 26,
  "src/cli/doctor/secrets.ts": 28,
  "src/cli/doctor/examine.ts": 29,
  "src/cli/commands/enqueue.ts": 29,
  "src/cli/commands/holders.ts": 29,
  "src/cli/commands/keys.ts": 29,
  "src/cli/commands/kinds.ts": 29,
  "src/cli/commands/migrate.ts": 29,
  "src/cli/commands/queues.ts": 29,
  "src/cli/commands/schedules.ts": 29,
  "src/cli/commands/ticks.ts": 29,
  "src/cli/commands/trigger.ts": 29,
  "src/cli/commands/triggers.ts": 29,
  "src/cli/commands/doctor.ts": 30,
  "src/cli/commands/jobs.ts": 30,
  "src/cli/commands/watch.ts": 30,
  "src/cli/commands/dead.ts": 31,
  "src/cli/main.ts": 32,
};

function filesBelow(folder: string, extension: string): string[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(extension))
    .map((name) => join(folder, name))
    .sort();
}

function read(file: string): string {
  return readFileSync(join(root, file), "utf8");
}

/** Code without comments, so that a comment may name what the code must not do. */
function code(file: string): string {
  return read(file)
    .replaceAll(/\/\*[\s\S]*?\*\//g, "")
    .replaceAll(/^\s*\/\/.*$/gm, "");
}

function imports(file: string): string[] {
  return [...code(file).matchAll(/(?:from|import)\s+"(\.[^"]+)"/g)].map(([, path]) =>
    relative(root, resolve(root, dirname(file), path ?? "")),
  );
}

const sources = filesBelow("src", ".ts");

describe("levels", () => {
  it("gives every source file a level", () => {
    expect(sources.filter((file) => levels[file] === undefined)).toEqual([]);
    expect(Object.keys(levels).filter((file) => !sources.includes(file))).toEqual([]);
  });

  it.each(sources)("%s imports only from lower levels", (file) => {
    const level = levels[file] ?? -1;
    const upward = imports(file).filter((target) => (levels[target] ?? Number.POSITIVE_INFINITY) >= level);
    expect(upward).toEqual([]);
  });
});

describe("places", () => {
  const offenders = (files: readonly string[], pattern: RegExp) => files.filter((file) => pattern.test(code(file)));
  const core = sources.filter((file) => !file.startsWith("src/cli/"));

  it("reads a clock in clock.ts only", () => {
    // The script of the dashboard runs in browsers.
    const others = core.filter((file) => file !== "src/clock.ts" && file !== "src/http/dashboard/assets/script.ts");
    expect(offenders(others, /Date\.now\(|new Date\(\)|performance\.|setTimeout|setInterval|Math\.random/)).toEqual([]);
  });

  it("writes to the console in one place", () => {
    expect(offenders(core, /console\./)).toEqual(["src/report.ts"]);
  });

  it("keeps the core free of platform imports", () => {
    const platform = /from "(node:|pg"|@neondatabase|hono|zod|cloudflare:)/;
    const entries = /^src\/(adapters|http|cli)\/|^src\/(neon|client)\.ts$/;
    expect(
      offenders(
        sources.filter((file) => !entries.test(file)),
        platform,
      ),
    ).toEqual([]);
  });

  it("talks SQL to the database in one place, and the transports only wrap it", () => {
    const sql = /\b(select|insert into|update|delete from|begin isolation|savepoint|set local)\s+[a-z$]/i;
    const speakers = core.filter((file) =>
      [...code(file).matchAll(/["'`]([^"'`]*)["'`]/g)].some(
        ([, text]) =>
          sql.test(text ?? "") &&
          /^(select|insert|update|delete|begin|savepoint|set|rollback|release)/.test(text ?? ""),
      ),
    );
    expect(speakers).toEqual(["src/adapters/node.ts", "src/neon.ts", "src/operations.ts", "src/postgres.ts"]);
  });

  it("writes HTML by escaping templates only, and no address of a page by hand", () => {
    const pages = sources.filter((file) => file.startsWith("src/http/"));
    expect(offenders(pages, /\braw\(|dangerouslySetInnerHTML|\bisEscaped\b|import \{[^}]*\braw\b/)).toEqual([]);
    expect(offenders(pages, /\bstyle="|\son[a-z]+="/)).toEqual([]);
  });

  it("has no any, no non-null assertion and no ignored type error", () => {
    expect(offenders(sources, /: any\b(?!\[\])|as any\b|@ts-(ignore|expect-error)/)).toEqual([]);
  });
});

describe("SQL", () => {
  const files = [...filesBelow("schema/migrations", ".sql"), ...filesBelow("schema/functions", ".sql")];
  const sql = (file: string) => read(file).replaceAll(/--.*$/gm, "");

  it("uses no session state: no session locks, LISTEN, NOTIFY, prepared statements or temporary tables", () => {
    const state = /pg_advisory_lock|pg_try_advisory_lock|\blisten\b|\bnotify\b|\bprepare\b|create temp|set session/i;
    expect(files.filter((file) => state.test(sql(file)))).toEqual([]);
  });

  it("names the schema of every table and function of ours", () => {
    const ours =
      /(?<![.\w])(job|attempt|tick|history|kind|revision|installation)\s+(as\s+)?[a-z]\b(?=\s+(where|set|join|on|left|cross|using))/;
    expect(files.filter((file) => ours.test(sql(file)))).toEqual([]);
  });

  it("derives lock keys in one file", () => {
    const derivation = /hashtextextended|<<\s*32\)\s*\|\s*\(/;
    expect(files.filter((file) => derivation.test(sql(file)))).toEqual(["schema/functions/010_lock_keys.sql"]);
  });

  it("waits for a lock where gates are locked and kinds are registered, and nowhere else", () => {
    expect(files.filter((file) => /pg_advisory_xact_lock/.test(sql(file)))).toEqual([
      "schema/functions/036_refill.sql",
      "schema/functions/050_register_v1.sql",
    ]);
  });

  it("grants nothing to everybody", () => {
    expect(files.filter((file) => /to public/i.test(sql(file)))).toEqual([]);
  });
});
