// The doctor on rights: whether each role that was granted a scope still has all that this release's grant_v1 gives with it.

import { plural } from "../format.ts";
import { rename, type SchemaFiles } from "../schema_files.ts";
import { type Finding, fail, ok, warn } from "./finding.ts";
import type { Probe } from "./probe.ts";

export const scopes = ["enqueue", "run", "operate"] as const;
export type GrantScope = (typeof scopes)[number];

interface Right {
  readonly scope: GrantScope;
  readonly type: "function" | "sequence" | "table";
  readonly name: string;
  readonly privilege: string;
}

/** What grant_v1 grants, read from the file that defines it: a list of our own would be forgotten. */
export function grantedRights({ functions }: SchemaFiles, schema: string): readonly Right[] {
  const text = rename(functions.find(({ name }) => name.includes("_grant_v1"))?.text ?? "", schema);
  const blocks = text.split(/(?:els)?if scope (?:in \(([^)]*)\)|= ('\w+')) then/);
  const rights: Right[] = [];
  for (let i = 1; i + 2 < blocks.length; i += 3) {
    const named = blocks[i] ?? blocks[i + 1] ?? "";
    for (const scope of scopes.filter((one) => named.includes(`'${one}'`)))
      rights.push(...rightsOf(scope, blocks[i + 2] ?? "", schema));
  }
  return rights;
}

function rightsOf(scope: GrantScope, block: string, schema: string): Right[] {
  return [...block.matchAll(/grant ([a-z, ]+?) on (function|sequence)?\s*([\s\S]*?)\s+to %I/g)].flatMap(
    ([, privileges = "", type, objects = ""]) => {
      const pattern = type === "function" ? `${schema}\\.\\w+\\([^)]*\\)` : `${schema}\\.\\w+`;
      const names = [...objects.matchAll(new RegExp(pattern, "g"))].map(([name]) => name);
      return names.flatMap((name) =>
        privileges.split(",").map((privilege) => ({
          scope,
          type: (type ?? "table") as Right["type"],
          name,
          privilege: privilege.trim(),
        })),
      );
    },
  );
}

export interface PrivilegeQuestion {
  readonly schema: string;
  readonly rights: readonly Right[];
  /** What the connected role is meant to do; empty: whatever it can do completely. */
  readonly wanted: readonly GrantScope[];
}

export async function privileges(probe: Probe, { schema, rights, wanted }: PrivilegeQuestion): Promise<Finding> {
  const [me] = await probe.ask("select current_user::text as role");
  const role = String(me?.role);
  const grantees = await probe
    .ask(`select scope, role_name::text as role from ${schema}.grantee order by 1, 2`)
    .catch(() => null);
  const roles = [...new Set([role, ...(grantees ?? []).map((row) => String(row.role))])];
  const lacking = await lacks(probe, schema, rights, roles);
  const of = (name: string, scope: GrantScope) => lacking.filter((one) => one.role === name && one.scope === scope);
  const complete = scopes.filter((scope) => of(role, scope).length === 0);
  const facts = { role, scopes: complete, lacking: lacking.slice(0, 100) };
  const grant = (scope: string, name: string) =>
    `select ${schema}.grant_v1('${scope}', '${name}'), as the schema's owner`;

  const short = wanted.find((scope) => !complete.includes(scope));
  if (short !== undefined) return fail("privileges", sentence(role, short, of(role, short)), grant(short, role), facts);
  if (complete.length === 0)
    return fail(
      "privileges",
      `"${role}" may neither enqueue, run nor operate: ${sentence(role, "enqueue", of(role, "enqueue"))}`,
      grant("run", role),
      facts,
    );
  for (const row of grantees ?? []) {
    const name = String(row.role);
    const scope = scopes.find((one) => one === row.scope);
    if (scope === undefined || of(name, scope).length === 0) continue;
    return fail("privileges", sentence(name, scope, of(name, scope)), grant(scope, name), facts);
  }
  const names = complete.join(", ");
  if (grantees?.length === 0 && !complete.includes("run"))
    return warn(
      "privileges",
      `"${role}" may ${names}, and no role was granted "run"`,
      grant("run", "your_role"),
      facts,
    );
  const others =
    grantees === null
      ? "what other roles were granted, only the schema's owner sees"
      : `${plural(grantees.length, "grant")} of other roles, all complete`;
  return ok(
    "privileges",
    `"${role}" may ${names}; ${grantees?.length === 0 ? "nothing was granted to other roles" : others}`,
    { facts },
  );
}

interface Lack {
  readonly role: string;
  readonly scope: GrantScope;
  readonly name: string;
  readonly privilege: string;
}

function sentence(role: string, scope: GrantScope, lacking: readonly Lack[]): string {
  const names = lacking.slice(0, 3).map(({ name, privilege }) => `${privilege} on ${name}`);
  return `"${role}" lacks ${lacking.length} of the rights of "${scope}": ${names.join(", ")}${lacking.length > 3 ? ", ..." : ""}`;
}

async function lacks(
  probe: Probe,
  schema: string,
  rights: readonly Right[],
  roles: readonly string[],
): Promise<readonly Lack[]> {
  const rows = await probe.ask(
    `with asked as (select $1::jsonb as j)
     select r.name as role, w.scope, w.name, w.privilege
     from asked,
       jsonb_array_elements_text(j -> 'roles') r(name),
       jsonb_to_recordset(j -> 'rights') w(scope text, type text, name text, privilege text)
     where exists (select from pg_catalog.pg_roles o where o.rolname = r.name)
       and not (
         has_schema_privilege(r.name, j ->> 'schema', 'usage')
         and case
           when w.type = 'function' then
             to_regprocedure(w.name) is not null and has_function_privilege(r.name, to_regprocedure(w.name), w.privilege)
           when w.type = 'sequence' then
             to_regclass(w.name) is not null and has_sequence_privilege(r.name, to_regclass(w.name), w.privilege)
           else to_regclass(w.name) is not null and has_table_privilege(r.name, to_regclass(w.name), w.privilege)
         end
       )`,
    JSON.stringify({ schema, roles, rights }),
  );
  return rows.map((row) => ({
    role: String(row.role),
    scope: row.scope as GrantScope,
    name: String(row.name),
    privilege: String(row.privilege),
  }));
}
