// What this deployment is given. Everything but the database may be missing; what needs it then says so.

export interface Env {
  readonly DATABASE_URL: string;
  /** Where "report.transaction" sends its reports. */
  readonly AUTHORITY_URL?: string;
  /** Opens POST /webhooks/github. */
  readonly GITHUB_WEBHOOK_SECRET?: string;
  /** `host:port` of the bridge of `npm run dev`. Set nowhere else. */
  readonly PGCLAIM_LOCAL_BRIDGE?: string;
}
