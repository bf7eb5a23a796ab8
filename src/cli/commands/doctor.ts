import type { Command } from "commander";
import type { Runner } from "../command.ts";
export function addDoctor(_program: Command, _runner: Runner): void {}
