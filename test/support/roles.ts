// Database roles of a test: made by grant_v1, gone with the test.

import pg from "pg";
import { onTestFinished } from "vitest";
import type { World } from "./world.ts";

export interface Role {
  readonly name: string;
  readonly url: string;
  /** A session of it, whose search_path is empty. */
  readonly client: pg.Client;
}

let roles = 0;

/** A login role with one scope, or with none. */
export async function roleOf(
  world: Pick<World, "sql" | "url">,
  scope: "enqueue" | "run" | "operate" | null,
): Promise<Role> {
  const name = `pgclaim_test_${process.pid}_${++roles}`;
  await world.sql.query(`create role ${name} login password 'secret'`);
  if (scope !== null) await world.sql.query("select pgclaim.grant_v1($1, $2)", [scope, name]);
  const url = new URL(world.url);
  url.username = name;
  url.password = "secret";
  const client = new pg.Client(url.toString());
  client.on("error", () => {});
  await client.connect();
  await client.query("set search_path = ''");
  onTestFinished(async () => {
    await client.end().catch(() => {});
    await world.sql.query(`drop owned by ${name}; drop role ${name}`);
  });
  return { name, url: url.toString(), client };
}
