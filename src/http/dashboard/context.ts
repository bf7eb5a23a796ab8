// What a page is made with: who looks, in which zone, of which deployment. Types and their defaults.

import type { Claimer } from "../../claimer.ts";
import type { Clock } from "../../clock.ts";
import { UsageError } from "../../errors.ts";
import type { Log } from "../../report.ts";
import type { Secrets } from "../auth.ts";
import type { Query } from "./routes.ts";
import type { Role } from "./session.ts";

/** How the dashboard of a deployment shows itself. */
export interface DashboardOptions {
  /** Stands in the header, so that nobody takes this installation for another. Default: the database's name. */
  readonly name?: string;
  /** Colour of the header's stripe: one of six names. Default `"none"`. */
  readonly colour?: StripeColour;
  /** Whether lists show how payloads begin. A job's own page shows its payload in either case. Default true. */
  readonly showPayloads?: boolean;
  /** Payload paths whose values are never shown, as `account.iban`; items of a list go by the list's name. Default none. */
  readonly redact?: readonly string[];
  /**
   * `"secret"`: whoever looks gives the operate or the read secret. `"none"`: whoever reaches the address may look and act; only
   * behind something that asks who they are, such as Cloudflare Access. Default `"secret"`.
   */
  readonly login?: "secret" | "none";
}

export const stripeColours = ["none", "red", "orange", "green", "blue", "purple"] as const;
export type StripeColour = (typeof stripeColours)[number];

const dashboardKeys = ["name", "colour", "showPayloads", "redact", "login"];

export interface DashboardDependencies<Bindings extends object = object> extends DashboardOptions {
  readonly claimer: (env: Bindings) => Claimer | Promise<Claimer>;
  readonly secrets: Secrets | ((env: Bindings) => Secrets);
  readonly log: Log;
  readonly secretCommand: string;
  /** Whose date ends a session. Default: the runtime's. */
  readonly clock?: Clock;
}

export type Theme = "system" | "light" | "dark";

/** One request for a page. */
export interface PageContext {
  readonly options: Required<Omit<DashboardOptions, "name">> & { readonly name: string | null };
  readonly claimer: Claimer;
  readonly role: Role;
  /** IANA name; UTC unless asked for. */
  readonly zone: string;
  readonly theme: Theme;
  /** Path and parameters as they were asked for, without what an action said. */
  readonly here: string;
  readonly path: string;
  readonly query: Query;
  /** Every value of a parameter that may stand several times. */
  readonly queries: (name: string) => readonly string[];
  /** Logged in, so that there is somebody to log out. */
  readonly hasSession: boolean;
}

/** Fills in the defaults. Errors: PGCLAIM_INVALID_OPTION. */
export function readDashboardOptions(options: DashboardOptions): PageContext["options"] {
  const refuse = (path: string, expected: string) =>
    new UsageError("PGCLAIM_INVALID_OPTION", `createApp(): ${path}: expected ${expected}.`, { path });
  for (const key of Object.keys(options)) {
    if (!dashboardKeys.includes(key)) throw refuse(`dashboard.${key}`, `one of ${dashboardKeys.join(", ")}`);
  }
  const { name, colour = "none", showPayloads = true, redact = [], login = "secret" } = options;
  if (name !== undefined && typeof name !== "string") throw refuse("dashboard.name", "text");
  if (!stripeColours.includes(colour)) throw refuse("dashboard.colour", `one of ${stripeColours.join(", ")}`);
  if (typeof showPayloads !== "boolean") throw refuse("dashboard.showPayloads", "true or false");
  if (!Array.isArray(redact) || !redact.every((path) => typeof path === "string" && path !== "")) {
    throw refuse("dashboard.redact", 'a list of payload paths, for example ["account.iban"]');
  }
  if (login !== "secret" && login !== "none") throw refuse("dashboard.login", '"secret" or "none"');
  return { name: name ?? null, colour, showPayloads, redact, login };
}
