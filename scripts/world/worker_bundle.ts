// Bundles a Worker as `wrangler deploy` does, without wrangler: half a second instead of three. The library is built
// first, because a Worker imports it by name and so gets what dist/ holds.

import { execFile } from "node:child_process";
import path from "node:path";
import { promisify } from "node:util";
import { gzip } from "node:zlib";
import { build } from "esbuild";

const ROOT = path.resolve(import.meta.dirname, "..", "..");

export type WorkerBundleOptions = {
  /** The module whose default export is the Worker. Default: the reference Worker, worker/index.ts. */
  entry?: string;
  /** As a deployment would be. Default false, so that stacks can be read. */
  minify?: boolean;
  /**
   * Builds dist/ before bundling. Default true. Two builds at once write the same files: whoever bundles in several
   * processes builds once beforehand and says false.
   */
  buildLibrary?: boolean;
};

export type WorkerBundle = {
  /** One ES module. */
  readonly code: string;
  readonly bytes: number;
  readonly gzipBytes: number;
};

export async function bundleWorker(options: WorkerBundleOptions = {}): Promise<WorkerBundle> {
  const { entry = path.join(ROOT, "worker", "index.ts"), minify = false, buildLibrary = true } = options;
  if (buildLibrary) await buildLibraryFiles();
  const result = await build({
    absWorkingDir: ROOT,
    entryPoints: [path.resolve(ROOT, entry)],
    bundle: true,
    write: false,
    minify,
    format: "esm",
    target: "es2024",
    // The ones wrangler sets, so that a package's Worker edition is taken where it has one.
    conditions: ["workerd", "worker", "browser"],
    external: ["cloudflare:*", "node:*"],
    logLevel: "silent", // What is wrong is in the error it throws.
    legalComments: "none",
  });
  const file = result.outputFiles[0];
  if (file === undefined) throw new Error(`esbuild made no file of "${entry}".`);
  const zipped = await promisify(gzip)(file.contents);
  return { code: file.text, bytes: file.contents.byteLength, gzipBytes: zipped.byteLength };
}

async function buildLibraryFiles(): Promise<void> {
  const tsc = path.join(ROOT, "node_modules", "typescript", "bin", "tsc");
  try {
    await promisify(execFile)(process.execPath, [tsc, "-p", path.join(ROOT, "tsconfig.build.json")], { cwd: ROOT });
  } catch (error) {
    // tsc says what is wrong on its standard output, which the error does not quote.
    const said = error instanceof Error && "stdout" in error ? String(error.stdout).trim() : "";
    throw new Error(`The library does not build:\n${said}`, { cause: error });
  }
}
