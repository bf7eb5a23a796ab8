// Ends a child process when this process dies without a chance to do it itself (SIGKILL, a crash of the runtime).

import { spawn } from "node:child_process";

export type DeathwatchOptions = {
  /** The child; it must not be our own process group's leader. */
  pid: number;
  /** Signals the child's whole process group, of which it must be the leader. Default false. */
  group?: boolean;
  signal: "TERM" | "QUIT";
  /** A folder to remove once the child is gone. */
  remove?: string | undefined;
  /** Whose rights the watcher has. Default: ours. */
  uid?: number | undefined;
  gid?: number | undefined;
};

/** Starts the watcher; the answer calls it off, to be used when the child has ended in order. */
export function deathwatch(options: DeathwatchOptions): () => void {
  if (process.platform === "win32") return () => {};
  const target = `${options.group ? "-" : ""}${options.pid}`;
  // The read ends when the kernel closes our end of the pipe, however this process came to its end.
  const script =
    'read _; kill -s "$2" -- "$1" 2>/dev/null || exit 0; ' +
    'if [ -n "$3" ]; then while kill -0 -- "$1" 2>/dev/null; do sleep 0.1; done; rm -rf -- "$3"; fi';
  const { uid, gid } = options;
  const watcher = spawn("/bin/sh", ["-c", script, "sh", target, options.signal, options.remove ?? ""], {
    ...(uid === undefined ? {} : { uid }),
    ...(gid === undefined ? {} : { gid }),
    cwd: "/",
    detached: true, // Out of the terminal's reach: Ctrl-C must not end the watcher before us.
    stdio: ["pipe", "ignore", "ignore"],
  });
  watcher.on("error", () => {}); // Without /bin/sh only the case of SIGKILL is uncovered.
  watcher.stdin?.on("error", () => {}); // The pipe breaks when it is called off.
  watcher.unref();
  return () => {
    watcher.kill("SIGKILL");
  };
}
