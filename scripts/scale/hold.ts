// Backends that run jobs: the lock table at scale, which proves what runs and says who holds what.

import pg from "pg";

/** Opens so many transactions, which hold the locks of all open attempts but the last few, and a name for each. */
export async function holdLocks(url: string, backends: number): Promise<pg.Client[]> {
  const clients: pg.Client[] = [];
  for (let i = 0; i < backends; i++) {
    const client = new pg.Client(url);
    await client.connect();
    clients.push(client);
    await client.query("begin");
    await client.query(
      `select
         pg_advisory_xact_lock(pgclaim.job_key(k.namespace, o.job_id)),
         pg_advisory_xact_lock(pgclaim.name_key('lock', 'n' || o.job_id, i.seed))
       from (
         select a.job_id, row_number() over (order by a.job_id) as r, count(*) over () as n
         from pgclaim.attempt a where a.outcome is null
       ) o
       join pgclaim.job j on j.id = o.job_id
       join pgclaim.kind k on k.name = j.kind
       cross join pgclaim.installation i
       where o.r % $1 = $2 and o.r <= greatest(1, o.n - 50)`,
      [backends, i],
    );
  }
  return clients;
}
