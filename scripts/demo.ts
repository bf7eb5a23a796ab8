// npm run demo: eight invocations at once on real parts, one process killed in the middle, and what is left to see.
// Exit codes: 0 every promise held, 1 one did not or could not be checked, 130 stopped by Ctrl-C.

import type { Call } from "./demo/authority.ts";
import { type Sent, send } from "./demo/input.ts";
import { Lifetime, Stopped } from "./demo/lifetime.ts";
import { duration, paper, plural } from "./demo/paper.ts";
import { type Findings, verdicts } from "./demo/promises.ts";
import { type InvocationLine, type Process, type Stage, setStage } from "./demo/stage.ts";
import * as watch from "./demo/watch.ts";

/** The process that is killed, and the one that takes its place, as a platform would start one. */
const VICTIM = "w2";
const REPLACEMENT = "w4";

/** How eight invocations are spread. Both of the victim's are crons, so that its rows can be told apart. */
const WAVE = [
  { name: "w1", how: "http" },
  { name: "w1", how: "cron" },
  { name: "w1", how: "http" },
  { name: "w2", how: "cron" },
  { name: "w2", how: "cron" },
  { name: "w3", how: "http" },
  { name: "w3", how: "cron" },
  { name: "w3", how: "http" },
] as const;

/** Milliseconds until the demo gives up waiting for the moment to kill. Below the timeout of "report.transaction". */
const KILL_LIMIT_MS = 18_000;
/** The same for all the work to be done; and for locks and connections to go, which as a rule takes a few. */
const WORK_LIMIT_MS = 60_000;
const CLOSE_LIMIT_MS = 3_000;

/** Milliseconds that a signal may take to arrive. */
const SIGNAL_DELAY_MS = 100;

const life = new Lifetime();
let story: Promise<number> = Promise.resolve(0);

async function main(): Promise<void> {
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.once(signal, () => void stop());
  watchParent();
  story = tell();
  try {
    process.exitCode = await story;
  } catch (error) {
    // Ctrl-C goes to workerd as well, and its end may be heard of before the signal is.
    await new Promise((resolve) => setTimeout(resolve, SIGNAL_DELAY_MS));
    if (life.stopping || error instanceof Stopped) return;
    console.error(`\nThe demo ended early. ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`);
    process.exitCode = 1;
  }
  await life.close();
}

async function tell(): Promise<number> {
  const startedAt = performance.now();
  paper.title("pgclaim demo: eight invocations at once on real parts, one process killed in the middle");
  paper.note(
    "An invocation is what a cron or an HTTP call wakes. It opens one connection and works in ticks: one transaction each, which claims jobs by their advisory locks, runs them, writes and commits.",
  );
  const { stage, processes } = await theParts();
  const sent = await theWork(stage, processes);
  const wave = await theWave(stage, processes);
  const recoveries = await theRecovery(stage, processes, wave);
  const effects = await theEffects(stage, processes);

  paper.section("6  Promises");
  const locksLeft = await watch.locksHeld(stage.sql);
  const { calls } = stage.authority;
  const checked = verdicts({ stage, sent, ...wave, recoveries, ...effects, calls, locksLeft });
  for (const { promise, ok, evidence } of checked) paper.verdict(promise, ok, evidence);
  for (const complaint of stage.complaints.slice(0, 5)) paper.fact("a Worker logged", complaint.slice(0, 400));
  const bad = checked.filter(({ ok }) => ok !== true).length;
  const inAll = `${duration(performance.now() - startedAt)} in all.`;
  console.log(
    bad === 0
      ? `\nAll ${checked.length} promises held. ${inAll}`
      : `\n${bad} of ${checked.length} promises did NOT hold or could not be checked. ${inAll}`,
  );
  return bad === 0 ? 0 : 1;
}

async function theParts(): Promise<{ stage: Stage; processes: Process[] }> {
  paper.section("1  The parts");
  const stage = await setStage(life);
  const processes = [await stage.start("w1"), await stage.start(VICTIM), await stage.start("w3")];
  const where = stage.external ? `database ${stage.databaseName} of DATABASE_URL` : "a private server";
  paper.fact("database", `Postgres ${stage.serverVersion}, ${where}, behind a stand-in for Neon's proxy`);
  paper.fact(
    "Worker",
    `worker/index.ts in three workerd processes: ${processes.map(({ name, pid }) => `${name} (pid ${pid})`).join(", ")}`,
  );
  paper.fact("authority", "a local HTTP server: answers in 30 to 60 ms, refuses 4 calls on purpose");
  return { stage, processes };
}

async function theWork(stage: Stage, processes: readonly Process[]): Promise<Sent> {
  paper.section("2  The work goes in");
  paper.note(
    "GitHub's own example payloads, signed, go to POST /webhooks/github, which stores each event and enqueues its job in one statement.",
  );
  // Kinds are registered when a deployment that defines them first runs: trigger it once after the deploy.
  await trigger(stage, named(processes, "w1"));
  const sendingAt = performance.now();
  const sent = await send(stage, processes);
  paper.fact("events", `${sent.events} posted (${sent.eventNames} sorts), ${sent.stored} stored with their jobs`);
  paper.fact("delivered again", `${sent.redelivered}, of which ${sent.duplicates} answered duplicate: no second job`);
  paper.fact("wrong signature", `${sent.forged}, of which ${sent.refused} refused with 401`);
  paper.fact(
    "report.transaction",
    `${sent.transactions.length} transactions of ${sent.accounts} accounts to POST /api/jobs, ${sent.enqueued} enqueued. An account posts its next one when the last is in: its reports have to come in that order`,
  );
  paper.fact("posted again", `${sent.again}, of which ${sent.known} answered duplicate, with the first one's job`);
  paper.fact("jobs", `${sent.jobIds.length} wait, sent in ${duration(performance.now() - sendingAt)}`);
  for (const surprise of sent.surprises.slice(0, 5)) paper.fact("UNEXPECTED ANSWER", surprise);
  return sent;
}

/** What the kill left to measure. */
type Wave = {
  readonly held: watch.Held;
  /** By the database's clock, read just before the signal. */
  readonly killedAt: string;
  /** Infinity if they did not go. */
  readonly locksGoneMs: number;
  /** From the kill to the next trigger. */
  readonly triggeredMs: number;
  readonly replacement: Process;
  /** Exactly the victim's invocations ended without an answer. */
  readonly onlyVictimDied: boolean;
};

async function theWave(stage: Stage, processes: readonly Process[]): Promise<Wave> {
  paper.section(`3  Eight invocations at once; ${VICTIM} is killed`);
  const { sql, lines } = stage;
  const before = lines.length;
  const runs = WAVE.map(({ name, how }) => {
    const target = named(processes, name);
    const run = how === "http" ? trigger(stage, target) : cron(target);
    return run.then(
      () => "answered" as const,
      () => "died" as const,
    );
  });
  const held = await momentToKill(
    stage,
    runs.filter((_, i) => WAVE[i]?.name === VICTIM),
  );

  const killedAt = await watch.databaseNow(sql);
  const killedAtMs = performance.now();
  const killed = named(processes, VICTIM).kill();
  const gone = await eventually(async () => (await watch.locksHeld(sql, VICTIM)) === 0, CLOSE_LIMIT_MS);
  const locksGoneMs = gone ? performance.now() - killedAtMs : Number.POSITIVE_INFINITY;
  await killed;
  const replacement = await stage.start(REPLACEMENT);
  const triggeredMs = performance.now() - killedAtMs;
  const triggered = cron(replacement);

  const ends = await Promise.all(runs);
  await triggered;
  const answered = ends.filter((end) => end === "answered").length;
  // A log line may come later than the answer to the call that wrote it.
  await eventually(async () => lines.length - before > answered, CLOSE_LIMIT_MS);
  const theirs = lines.slice(before).filter(({ process: name }) => name !== REPLACEMENT);
  paper.note(
    "A skip is a job left alone, counted each time it is met. busy: another invocation holds its lock. open-attempt: its holder has died, and the next wake-up closes that attempt. unfit: its timeout is longer than what an invocation by HTTP has left.",
  );
  paper.table(
    ["#", "process", "trigger", "ticks", "claimed", "done", "retried", "ms", "skipped"],
    waveRows(theirs, held),
  );
  const reports = held.attempts.flatMap(({ orderingKey }) => orderingKey ?? []);
  const accounts = new Set(reports);
  paper.note(
    `${VICTIM} was killed (SIGKILL) while it held ${plural(held.attempts.length, "job")} in ${plural(held.transactions, "transaction")}, ${plural(reports.length, "report")} of ${plural(accounts.size, "account")} among them, and its handlers waited for the authority.`,
  );
  const onlyVictimDied = ends.every((end, i) => (end === "died") === (WAVE[i]?.name === VICTIM));
  return { held, killedAt, locksGoneMs, triggeredMs, replacement, onlyVictimDied };
}

async function theRecovery(stage: Stage, processes: readonly Process[], wave: Wave): Promise<watch.Recovery[]> {
  paper.section("4  From the kill to being claimed again");
  const alive = [...processes.filter(({ name }) => name !== VICTIM), wave.replacement];
  const later = await triggerUntilDone(stage, alive);
  const recoveries = await watch.recoveries(stage.sql, wave.killedAt);
  const waits = recoveries.flatMap(({ afterMs }) => (afterMs === null ? [] : [afterMs]));
  const at = (ms: number | undefined) => (ms === undefined ? "NEVER" : `after ${duration(ms)}`);
  paper.fact("killed", "0 ms, by the database's clock");
  paper.fact("its locks are free", `${at(wave.locksGoneMs)}: Postgres has seen the connection close`);
  paper.fact("next trigger", `${at(wave.triggeredMs)}: a fresh process (${REPLACEMENT}) has to start first`);
  paper.fact("first job claimed again", at(waits[0]));
  paper.fact(
    "last job claimed again",
    `${at(waits.at(-1))}: each of the ${recoveries.length} runs alone now, as it may be what killed ${VICTIM}`,
  );
  paper.note(
    "No lease, heartbeat or visibility timeout bounds this wait, only the next trigger does. With a cron every minute that is a minute at most; here it was called at once.",
  );
  const backoff = later.waitedMs > 0 ? `; ${duration(later.waitedMs)} went by waiting for a backoff to end` : "";
  paper.fact("triggers after that", `${later.count}, until nothing was left${backoff}`);
  return recoveries;
}

async function theEffects(
  stage: Stage,
  processes: readonly Process[],
): Promise<Pick<Findings, "ledger" | "followers" | "reported" | "sessionsLeft">> {
  paper.section("5  What came of it");
  const { sql, authority } = stage;
  const names = [...processes.map(({ name }) => name), REPLACEMENT];
  await eventually(async () => (await watch.sessionsOpen(sql, names)) === 0, CLOSE_LIMIT_MS);
  const sessionsLeft = await watch.sessionsOpen(sql, names);
  const ledger = await watch.ledger(sql);
  const followers = await watch.followers(sql);
  const reported = await watch.reported(sql);
  const { calls, effects } = authority;
  const answered = (answer: Call["answer"]) => calls.filter((call) => call.answer === answer).length;
  paper.fact("activity rows", `${ledger.activity} for ${ledger.events} events, in ${ledger.repositories} repositories`);
  paper.fact("receipts", `${ledger.receipts} for ${ledger.reportJobsDone} report.transaction jobs`);
  paper.fact("attempts", `${ledger.attempts} for ${ledger.done} jobs; ${ledger.crashed} crashed with ${VICTIM}`);
  paper.fact("dead letters", `${ledger.dead}`);
  paper.fact(
    "calls at the authority",
    `${calls.length} with ${effects.size} idempotency keys: ${answered(200)} answered, ${answered(503)} refused with 503, ${answered("cut")} cut off by the kill`,
  );
  paper.note("All calls for two accounts, as they came. What was not answered comes again before the next one may:");
  paper.table(["account", "transaction", "from", "idempotency-key", "fencing-token", "answer"], twoAccounts(calls));
  paper.note(
    "By its key the authority knows a call it has seen and does its part once. Calls are at least once: outside the database nobody can promise more.",
  );
  return { ledger, followers, reported, sessionsLeft };
}

/** POST /api/trigger. Rejects for any answer but a report. */
async function trigger(stage: Stage, target: Process): Promise<void> {
  const answer = await target.fetch("/api/trigger", {
    method: "POST",
    headers: { authorization: `Bearer ${stage.secrets.trigger}` },
  });
  if (answer.status !== 200) {
    throw new Error(`POST /api/trigger at ${target.name} answered ${answer.status}: ${answer.text}`);
  }
}

async function cron(target: Process): Promise<void> {
  const { outcome } = await target.scheduled({ cron: "* * * * *", scheduledTime: new Date() });
  if (outcome !== "ok") throw new Error(`scheduled() at ${target.name} ended as ${outcome}`);
}

/**
 * Resolves when each of the victim's invocations that still runs is in a tick in which a handler waits for the authority.
 * Its answer never comes, so no such tick can end, and what it holds stays what it is. Until then the others wait as well,
 * or they would leave no account for the victim. To be called in the same turn of the event loop that started the
 * invocations.
 */
function momentToKill(stage: Stage, runs: readonly Promise<unknown>[]): Promise<watch.Held> {
  return new Promise((resolve, reject) => {
    const waiting = new Set<string>();
    let running = runs.length;
    let decided = false;
    let looking: Promise<void> = Promise.resolve();
    const decide = (how: () => void) => {
      decided = true;
      clearTimeout(limit);
      letOthersGo();
      how();
    };
    const missed = () =>
      decide(() => reject(new Error(`${VICTIM} never waited for the authority, so it was not killed.`)));
    const limit = setTimeout(missed, KILL_LIMIT_MS);
    const look = async () => {
      if (decided) return;
      if (running === 0) return missed();
      const held = await watch.held(stage.sql, VICTIM);
      const stuck = held.attempts.filter(({ jobId, n }) => waiting.has(`${jobId}/${n}`)).map(({ tick }) => tick);
      if (new Set(stuck).size >= running) decide(() => resolve(held));
    };
    const lookAgain = () => {
      looking = looking.then(look).catch((error: unknown) => decide(() => reject(error)));
    };
    const letOthersGo = stage.authority.hold(VICTIM, ({ fencingToken }) => {
      waiting.add(fencingToken);
      lookAgain();
    });
    for (const run of runs) {
      void run.then(() => {
        running--;
        lookAgain();
      });
    }
  });
}

/** Triggers as a cron would, but without its pauses, until no job is left or time is up. */
async function triggerUntilDone(
  stage: Stage,
  targets: readonly Process[],
): Promise<{ readonly count: number; readonly waitedMs: number }> {
  const until = performance.now() + WORK_LIMIT_MS;
  let count = 0;
  let waitedMs = 0;
  while (performance.now() < until) {
    const { due, later, dueInMs } = await watch.unfinished(stage.sql);
    if (due === 0 && later === 0) break;
    if (due === 0 && dueInMs !== null && dueInMs > 0) {
      waitedMs += dueInMs;
      await new Promise((resolve) => setTimeout(resolve, dueInMs));
    }
    const target = targets[count % targets.length];
    if (target === undefined) break;
    await cron(target);
    count++;
  }
  return { count, waitedMs };
}

function waveRows(lines: readonly InvocationLine[], held: watch.Held): (string | number)[][] {
  const rest = [...lines];
  const lost = [...Map.groupBy(held.attempts, ({ tick }) => tick).values()];
  const rows = WAVE.map(({ name, how }, i) => {
    if (name === VICTIM)
      return [i + 1, name, how, 1, lost.shift()?.length ?? 0, 0, 0, "-", "KILLED in this tick, so no report"];
    const at = rest.findIndex((line) => line.process === name && line.trigger.startsWith(how));
    const [line] = at === -1 ? [] : rest.splice(at, 1);
    if (line === undefined) return [i + 1, name, how, "-", "-", "-", "-", "-", "NO REPORT"];
    const skipped = Object.entries(line.skipped).map(([reason, n]) => `${n} ${reason}`);
    const { ticks, claimed, done, retried, totalMs } = line;
    return [i + 1, name, how, ticks.length, claimed, done, retried, totalMs, skipped.join(", ") || "none"];
  });
  const sum = (column: number) => rows.reduce((total, row) => total + (Number(row[column]) || 0), 0);
  return [...rows, ["", "all", "", sum(3), sum(4), sum(5), sum(6), "-", ""]];
}

/** Everything that came for two accounts: one whose call was refused, one whose call was cut off. */
function twoAccounts(calls: readonly Call[]): (string | number)[][] {
  const accounts = [...new Set(calls.map(({ account }) => account))];
  const callsOf = (account: string | undefined) => calls.filter((call) => call.account === account);
  const met = (answer: Call["answer"]) => (account: string) =>
    callsOf(account).some((call) => call.answer === answer) && !shown.includes(account);
  const shown: string[] = [];
  for (const answer of [503, "cut"] as const) shown.push(...accounts.filter(met(answer)).slice(0, 1));
  return shown.flatMap((account) =>
    callsOf(account).map((call) => [
      account,
      call.transactionId,
      call.from,
      call.key,
      call.fencingToken,
      call.answer === "cut" ? `none, ${call.from} was killed` : String(call.answer),
    ]),
  );
}

function named(processes: readonly Process[], name: string): Process {
  const found = processes.find((one) => one.name === name);
  if (found === undefined) throw new Error(`there is no process ${name}`);
  return found;
}

/** Asks again until it is so, or the limit has passed; each question takes a round trip, so it needs no pause. */
async function eventually(isSo: () => Promise<boolean>, limitMs: number): Promise<boolean> {
  const until = performance.now() + limitMs;
  while (!(await isSo())) {
    if (performance.now() > until) return false;
    await new Promise((resolve) => setImmediate(resolve));
  }
  return true;
}

async function stop(): Promise<void> {
  if (life.stopping) return;
  console.error("\nStopping: everything the demo started ends with it.");
  await life.close();
  await story.catch(() => {}); // It fails now that its parts are gone; what it was just starting is closed with it.
  process.exit(130);
}

/** npm does not pass signals on: when it is killed we are an orphan, and nobody else would stop us. */
function watchParent(): void {
  const parent = process.ppid;
  setInterval(() => {
    if (process.ppid !== parent) void stop();
  }, 500).unref();
}

await main();
