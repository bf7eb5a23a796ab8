// The stage of one history: actors whose every step towards the database stops until it is released. The engine is the real
// one and so is the SQL; only the order is ours. A step is one message, cut where a commit ends it: what the server can do
// between two statements of others, it does here.

import { AsyncLocalStorage } from "node:async_hooks";
import { endsWithin } from "../support/gate.ts";
import type { Backend, Backends } from "./backends.ts";
import { type Footprint, union } from "./independence.ts";
import type { QueryObject, StagedClient } from "./staged_client.ts";

export type Verb =
  | "wake"
  | "claim"
  | "fence"
  | "call"
  | "turn"
  | "effect"
  | "end-turn"
  | "undo"
  | "finish"
  | "commit"
  | "rollback"
  | "settle"
  | "enqueue"
  | "die"
  | "prune"
  | "other";

/**
 * What may become of a step instead of running it:
 *
 *   crash          the invocation dies before it, its session with it.
 *   crash-sent     it dies with the message under way: the server executes it at any later moment, or never hears of it.
 *   lose           the session is gone before it; the invocation lives.
 *   silent         the server's end is gone before it; the invocation finds out when it next speaks on the session.
 *   half-open      as lose, but the server does not notice before some later moment.
 *   lost           it is executed, its answer never comes.
 *   late           no answer; it arrives at any later moment. Of finish: on the half-open session.
 *   late-twice     as late, and the repetition is lost before it arrives.
 *   lost-twice     executed once, both answers lost.
 */
export type Fault =
  | "crash"
  | "crash-sent"
  | "lose"
  | "silent"
  | "half-open"
  | "lost"
  | "late"
  | "late-twice"
  | "lost-twice";

/** Where and how somebody fails: at most once, decided before the history begins. */
export interface Plan {
  readonly actor: string;
  readonly label: string;
  readonly fault: Fault;
}

export interface Step {
  readonly actor: Actor;
  /** Unique in its actor: the verb, the job of a handler's, and how often it was there before. */
  readonly label: string;
  readonly verb: Verb;
  readonly session: StagedClient | null;
  readonly send: (backend: Backend) => Promise<unknown>;
  readonly needsBackend: boolean;
  readonly footprint: (value: unknown) => Footprint;
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: unknown) => void;
}

export const idOf = (step: Step): string => `${step.actor.name}.${step.label}`;

export class Actor {
  readonly name: string;
  readonly stage: Stage;
  /** Runs its steps at once. */
  readonly free: boolean;
  pending: Step[] = [];
  ended = false;
  dead = false;
  /** The repetition of this verb is lost before it arrives. */
  mute: Verb | null = null;
  result: unknown = null;
  readonly seen = new Map<string, number>();

  constructor(stage: Stage, name: string, free = false) {
    this.stage = stage;
    this.name = name;
    this.free = free;
  }
}

/** Whose step it is that reaches the database, through whatever promises. */
export const onStage = new AsyncLocalStorage<Actor>();

export function currentActor(): Actor {
  const actor = onStage.getStore();
  if (actor === undefined) throw new Error("a step outside of every actor");
  return actor;
}

export interface Director {
  /** The branch to take; null where every one of them has been seen. */
  choose(options: readonly Step[]): Step | null;
  /** After the chosen step, with all it has touched. */
  ran(footprint: Footprint): void;
  fault(step: Step): Fault | null;
  /** Whether what is left of this history would only repeat another one. */
  pointless(stage: Stage): boolean;
}

export interface Start {
  readonly job: string;
  readonly attempt: number;
  readonly tick: string;
  readonly actor: string;
  readonly quarantined: boolean;
}

interface InFlight {
  readonly step: Step;
  readonly backend: Backend;
  readonly done: Promise<void>;
  answered: boolean;
  finish: () => Promise<Footprint>;
}

const local: ReadonlySet<Verb> = new Set<Verb>(["call", "turn", "effect", "end-turn", "undo", "enqueue"]);

/** The others only ever try a lock, or touch what is their own; that they are answered is a test as well. */
const mayWait: ReadonlySet<Verb> = new Set<Verb>(["fence", "finish", "commit", "settle", "prune"]);

export class ConnectionLost extends Error {
  constructor() {
    super("Connection terminated unexpectedly");
  }
}

export class Stage {
  readonly backends: Backends;
  /** Names of what a job needs: itself, its gate, its names. Null for a job nobody told us about. */
  readonly resourcesOf: (jobId: string) => ReadonlySet<string> | null;
  readonly trace: string[] = [];
  readonly labels = new Set<string>();
  readonly starts: Start[] = [];
  /** What was wrong at some moment of the history. */
  readonly faults: string[] = [];
  /** Looks at the database after a step that may have closed or opened attempts. */
  audit: (step: Step) => Promise<void> = async () => {};
  /** Names of the enqueuers' transactions in the order in which they committed. */
  readonly commits: string[] = [];
  /** Those whose server's end lives. */
  readonly sessions = new Set<StagedClient>();
  /** All there ever were; an invocation may not know yet that its own is gone. */
  readonly everySession: StagedClient[] = [];
  readonly #actors: Actor[] = [];
  #blocked: InFlight[] = [];
  #writers = 0;
  /** Steps that have met their fault; one that still goes on after it meets no other. */
  readonly #failed = new Set<Step>();
  steps = 0;
  waits = 0;

  constructor(backends: Backends, resourcesOf: (jobId: string) => ReadonlySet<string> | null) {
    this.backends = backends;
    this.resourcesOf = resourcesOf;
  }

  /** Puts an actor on stage; it goes as far as its first step. */
  enter(name: string, play: () => Promise<unknown>, free = false): Actor {
    const actor = new Actor(this, name, free);
    this.#actors.push(actor);
    onStage
      .run(actor, play)
      .then(
        (value) => {
          actor.result = value;
        },
        (error: unknown) => {
          if (!actor.dead)
            this.faults.push(`${name} threw: ${error instanceof Error ? (error.stack ?? error.message) : error}`);
        },
      )
      .finally(() => {
        actor.ended = true;
      });
    return actor;
  }

  /** In an actor: stops before a step until it is released, and answers what came of it. */
  step<T>(request: {
    readonly actor: Actor;
    readonly verb: Verb;
    readonly of?: string;
    readonly session?: StagedClient | null;
    readonly needsBackend?: boolean;
    readonly send: (backend: Backend) => Promise<T>;
    readonly footprint?: (value: T) => Footprint;
  }): Promise<T> {
    const { actor, verb } = request;
    const name = request.of === undefined ? verb : `${verb}:${request.of}`;
    const times = (actor.seen.get(name) ?? 0) + 1;
    actor.seen.set(name, times);
    return new Promise<T>((resolve, reject) => {
      if (actor.dead) return; // nobody is there any more to hear an answer
      const step: Step = {
        actor,
        verb,
        label: `${name}#${times}`,
        session: request.session ?? null,
        needsBackend: request.needsBackend ?? true,
        send: request.send,
        footprint: (value) => request.footprint?.(value as T) ?? "local",
        resolve: (value) => resolve(value as T),
        reject,
      };
      this.labels.add(`${actor.name}.${step.label}`);
      if (actor.free) void this.#now(step);
      else actor.pending.push(step);
    });
  }

  async #now(step: Step): Promise<void> {
    const inFlight = await this.#execute(step);
    await inFlight.done;
    await inFlight.finish();
  }

  /** Plays until everybody has ended. */
  async play(director: Director): Promise<"ended" | "seen" | "deadlock"> {
    for (;;) {
      await this.#rest();
      const ready = this.#actors.flatMap(({ pending }) => pending);
      if (ready.length === 0) {
        if (this.#blocked.length > 0) return "deadlock";
        return director.pointless(this) ? "seen" : "ended";
      }
      const faultOf = (step: Step) => (this.#failed.has(step) ? null : director.fault(step));
      const free = ready.find((step) => this.#isLocal(step, faultOf(step)));
      if (free !== undefined) {
        await this.#release(free, faultOf(free));
        continue;
      }
      if (director.pointless(this)) return "seen";
      const chosen = director.choose(ready);
      if (chosen === null) return "seen";
      director.ran(await this.#release(chosen, faultOf(chosen)));
    }
  }

  /** A session has begun, or ended, to hold what others may have to wait for. */
  wrote(change: 1 | -1): void {
    this.#writers += change;
  }

  /** Faults that have struck. */
  get struck(): number {
    return this.#failed.size;
  }

  /** Whether an actor has nothing left to do. */
  isOver(name: string): boolean {
    return this.#actors.find((actor) => actor.name === name)?.ended ?? false;
  }

  /** Who waits for a lock. */
  stuck(): string[] {
    return this.#blocked.map(({ step }) => idOf(step));
  }

  /** Nobody goes on; the server forgets what was under way. */
  async abandon(): Promise<void> {
    for (const actor of this.#actors) this.#bury(actor);
    for (const { step, backend } of this.#blocked) {
      if (step.session === null) await this.backends.kill(backend);
    }
    const stuck = new Set(this.#blocked.map(({ step }) => step.session));
    for (const session of [...this.sessions]) await session.abandon(stuck.has(session));
    this.#blocked = [];
  }

  #bury(actor: Actor): void {
    actor.dead = true;
    actor.ended = true;
    actor.pending = [];
  }

  /** Returns when every actor has ended, waits for a lock, or stands before a step. */
  async #rest(): Promise<void> {
    const until = performance.now() + 20_000;
    const waiting = new Set(this.#blocked.map(({ step }) => step.actor));
    for (;;) {
      // Between two steps there is nothing but microtasks, and a pause of the virtual clock, which is one turn of the loop.
      await new Promise((resolve) => setImmediate(resolve));
      const busy = this.#actors.find((a) => !a.free && !a.ended && a.pending.length === 0 && !waiting.has(a));
      if (busy === undefined) return;
      if (performance.now() > until)
        throw new Error(`${busy.name} neither ends nor takes a step: ${this.trace.join(" ")}`);
    }
  }

  #held(step: Step): Footprint {
    return this.#sessionsOf(step.actor)
      .map(({ held }) => held)
      .reduce(union, "local");
  }

  #sessionsOf(actor: Actor): StagedClient[] {
    return [...this.sessions].filter((session) => session.actor === actor && !session.lost);
  }

  /** Whether nobody else can tell that this step was taken. */
  #isLocal(step: Step, fault: Fault | null): boolean {
    switch (fault) {
      case null:
        if (step.actor.mute === step.verb || local.has(step.verb)) return true;
        return step.verb === "rollback" && step.session?.held === "local";
      case "crash":
      case "lose":
      case "silent":
        return this.#held(step) === "local";
      case "crash-sent":
        return step.session !== null || this.#held(step) === "local";
      case "half-open":
      case "late":
      case "late-twice":
        return true;
      case "lost":
      case "lost-twice":
        return false;
      default:
        return fault satisfies never;
    }
  }

  /** Takes one step, and lets those go on who waited for it. Answers all that was touched. */
  async #release(step: Step, fault: Fault | null): Promise<Footprint> {
    this.steps++;
    const { actor } = step;
    actor.pending = actor.pending.filter((other) => other !== step);
    let footprint = fault === null ? await this.#plain(step) : await this.#fail(step, fault);
    for (const inFlight of [...this.#blocked]) {
      if (!(await this.#answered(inFlight))) continue;
      this.#blocked = this.#blocked.filter((other) => other !== inFlight);
      this.trace.push(`${idOf(inFlight.step)} goes on`);
      footprint = union(footprint, await inFlight.finish());
    }
    return footprint;
  }

  async #plain(step: Step): Promise<Footprint> {
    if (step.actor.mute === step.verb) {
      step.actor.mute = null;
      this.trace.push(`${idOf(step)} is lost`);
      step.reject(new ConnectionLost());
      return "local";
    }
    const at = this.trace.push(idOf(step)) - 1;
    const inFlight = await this.#execute(step);
    if (await this.#answered(inFlight)) return inFlight.finish();
    this.waits++;
    this.trace[at] += " waits";
    this.#blocked.push(inFlight);
    return step.footprint(null);
  }

  async #fail(step: Step, fault: Fault): Promise<Footprint> {
    const { actor, session } = step;
    this.#failed.add(step);
    this.trace.push(`${idOf(step)} ${fault}`);
    const held = this.#held(step);
    switch (fault) {
      case "crash":
      case "crash-sent": {
        this.#bury(actor);
        const mine = this.#sessionsOf(actor);
        if (fault === "crash-sent" && session !== null) {
          this.#phantom(step);
          return "local";
        }
        for (const one of mine) await one.kill();
        if (fault === "crash-sent") this.#phantom(step);
        return held;
      }
      case "silent":
        actor.pending.unshift(step); // it speaks to others, or to nobody
        for (const one of this.#sessionsOf(actor)) await one.kill();
        return held;
      case "lose":
      case "half-open": {
        if (session === null) actor.pending.unshift(step); // what is not on the session goes on
        for (const one of this.#sessionsOf(actor)) {
          if (fault === "lose") await one.kill();
          else this.#dieLater(one);
          one.lose();
        }
        if (session !== null) step.reject(new ConnectionLost());
        return fault === "lose" ? held : "local";
      }
      case "late":
      case "late-twice":
        if (fault === "late-twice") actor.mute = step.verb;
        this.#phantom(step);
        session?.lose();
        step.reject(new ConnectionLost());
        return "local";
      case "lost":
      case "lost-twice": {
        if (fault === "lost-twice") actor.mute = step.verb;
        const inFlight = await this.#execute({ ...step, resolve: () => step.reject(new ConnectionLost()) });
        // Blocked or not, the answer will not come; but what it does must be done before the session goes.
        if (!(await this.#answered(inFlight))) {
          this.waits++;
          this.#blocked.push({
            ...inFlight,
            finish: async () => {
              const touched = await inFlight.finish();
              if (session === null) return touched;
              await session.kill();
              session.lose();
              return union(touched, held);
            },
          });
          return step.footprint(null);
        }
        const touched = await inFlight.finish();
        if (session === null) return touched;
        await session.kill();
        session.lose();
        return union(touched, held);
      }
      default:
        return fault satisfies never;
    }
  }

  /** A message that arrives without its sender: at any later moment, on its own. */
  #phantom(step: Step): void {
    const { session } = step;
    if (session !== null) session.lost = true;
    this.enter(this.#echo(step.actor), async () => {
      const actor = currentActor();
      await this.step({ ...step, actor }).then(
        () => (step.verb === "finish" ? session?.commitAs(actor) : undefined),
        () => {}, // refused, and nobody there to hear it
      );
      // The message has been executed, or refused; the server finds that nobody is there any more.
      if (session !== null) await session.dieAs(actor);
    });
  }

  /** A name for what goes on in an actor's name without it. */
  #echo({ name }: Actor): string {
    const echo = `${name}'`;
    return this.#actors.some((actor) => actor.name === echo) ? `${echo}'` : echo;
  }

  #dieLater(session: StagedClient): void {
    session.lost = true;
    this.enter(this.#echo(session.actor), () => session.dieAs(currentActor()));
  }

  /** Sends a step and takes note of its answer. */
  async #execute(step: Step): Promise<InFlight> {
    const { session } = step;
    const backend = session?.backend ?? (step.needsBackend ? await this.backends.take("one-shot") : null);
    let value: unknown;
    let error: unknown = null;
    let failed = false;
    const inFlight: InFlight = {
      step,
      backend: backend as Backend,
      answered: false,
      done: Promise.resolve(),
      finish: async () => {
        if (session === null && backend !== null) {
          if (failed) await backend.client.query("rollback").catch(() => {});
          this.backends.give(backend);
        }
        session?.after(step.verb, failed, value);
        const footprint = step.footprint(failed ? null : value);
        if (step.verb === "fence" || step.verb === "wake") await this.audit(step);
        if (failed) step.reject(error);
        else step.resolve(value);
        return footprint;
      },
    };
    session?.before(step.verb);
    const done = step.send(backend as Backend).then(
      (answer) => {
        value = answer;
        inFlight.answered = true;
      },
      async (thrown: unknown) => {
        // The server says what is wrong first and gives the locks back then: only when it is ready is the step over.
        if (backend !== null) await this.backends.ready(backend);
        error = thrown;
        failed = true;
        inFlight.answered = true;
      },
    );
    return Object.assign(inFlight, { done });
  }

  /** Whether the step has been answered; false when it waits for a lock of somebody else. */
  async #answered(inFlight: InFlight): Promise<boolean> {
    const others = this.#writers - (inFlight.step.session?.writes === true ? 1 : 0);
    if (others <= 0 || inFlight.backend === null || !mayWait.has(inFlight.step.verb)) {
      await endsWithin(20_000, inFlight.done, idOf(inFlight.step));
      return true;
    }
    const until = performance.now() + 20_000;
    while (!inFlight.answered) {
      const blocked = this.backends.isBlocked(inFlight.backend);
      await Promise.race([inFlight.done, blocked]);
      if (inFlight.answered) break;
      if (await blocked) return inFlight.answered;
      if (performance.now() > until) throw new Error(`${idOf(inFlight.step)} is neither answered nor blocked`);
    }
    return true;
  }
}

export type { QueryObject };
