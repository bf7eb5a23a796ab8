-- Postgres lets everybody execute a new function. Here nobody may who was not granted it (grant_v1).
-- Existing grants to named roles stay.
revoke all on all functions in schema pgclaim from public;
revoke all on all tables in schema pgclaim from public;
revoke all on schema pgclaim from public;
