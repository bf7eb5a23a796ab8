// A file system of a few megabytes (tmpfs), to be filled up. Mounting needs the right to; where it is not given the answer
// says so, and whoever asked must say loudly what did not run.

import { execFileSync, spawn } from "node:child_process";
import fs from "node:fs";
import os from "node:os";
import path from "node:path";

export interface TinyFilesystem {
  readonly dir: string;
  /** Leaves no byte. */
  fill(): void;
  /** Takes back what `fill` took. */
  free(): void;
  /** Unmounts it, whoever still has files open there. */
  remove(): Promise<void>;
}

/** Mounts it, for the owner of `like`; or answers why not. */
export function tinyFilesystem(megabytes: number, like?: fs.Stats): TinyFilesystem | string {
  const dir = fs.mkdtempSync(path.join(fs.realpathSync(os.tmpdir()), "pgclaim-tiny-"));
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${megabytes}m,mode=0755`, "tmpfs", dir], { stdio: "pipe" });
  } catch (error) {
    fs.rmdirSync(dir);
    return error instanceof Error ? error.message.trim() : String(error);
  }
  // Its read ends when we close the pipe, or when this process ends, however it does.
  const keeper = spawn("/bin/sh", ["-c", 'read _; umount -l -- "$1"; rmdir -- "$1"', "sh", dir], {
    cwd: "/",
    detached: true,
    stdio: ["pipe", "ignore", "ignore"],
  });
  keeper.unref();
  if (like !== undefined) fs.chownSync(dir, like.uid, like.gid);
  const filler = path.join(dir, "filler");
  return {
    dir,
    fill() {
      const file = fs.openSync(filler, "a");
      try {
        for (let bytes = 1 << 20; bytes >= 512; ) {
          try {
            if (fs.writeSync(file, Buffer.alloc(bytes)) < bytes) bytes >>= 1;
          } catch (error) {
            if ((error as NodeJS.ErrnoException).code !== "ENOSPC") throw error;
            bytes >>= 1;
          }
        }
      } finally {
        fs.closeSync(file);
      }
    },
    free: () => fs.rmSync(filler, { force: true }),
    remove: () =>
      new Promise((resolve) => {
        keeper.once("exit", () => resolve());
        keeper.stdin.end();
      }),
  };
}
