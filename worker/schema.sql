-- The tables of the reference Worker's own jobs. pgclaim's are apart, in the schema pgclaim. May be run again.

-- GitHub's events as they came. The primary key is what turns a redelivery into nothing.
create table if not exists webhook_event (
  delivery_id text        not null,
  name        text        not null,
  received_at timestamptz not null default clock_timestamp(),
  body        jsonb       not null,
  constraint webhook_event_pkey primary key (delivery_id)
);

-- What happened where: the effect of "github.event". An event takes effect once, or the unique constraint says so.
create table if not exists repository_activity (
  id          bigint      generated always as identity,
  repository  text        not null,  -- owner/name, or (none) for events of an organization or an account
  delivery_id text        not null,
  event       text        not null,
  action      text,
  actor       text,
  at          timestamptz not null,
  constraint repository_activity_pkey primary key (id),
  constraint repository_activity_delivery_key unique (delivery_id),
  constraint repository_activity_delivery_fkey foreign key (delivery_id) references webhook_event
);
create index if not exists repository_activity_recent on repository_activity (repository, at desc);

-- What the authority answered: the effect of "report.transaction", one row for each job.
create table if not exists report_receipt (
  job_id         bigint      not null,
  attempt        integer     not null,
  transaction_id text        not null,
  account        text        not null,
  amount         numeric     not null,
  receipt        text        not null,
  reported_at    timestamptz not null default clock_timestamp(),
  constraint report_receipt_pkey primary key (job_id)
);
create index if not exists report_receipt_transaction on report_receipt (transaction_id);
