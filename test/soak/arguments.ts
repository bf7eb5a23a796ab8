// What the soaks' command lines share.

/** The text behind a flag, or undefined. */
export function argument(name: string): string | undefined {
  const i = process.argv.indexOf(name);
  return i === -1 ? undefined : process.argv[i + 1];
}

/** The number behind a flag. Errors: where it is none, or not above `above`. */
export function numberArgument(name: string, otherwise: number, above = Number.NEGATIVE_INFINITY): number {
  const given = argument(name);
  const number = given === undefined ? otherwise : Number(given);
  if (Number.isFinite(number) && number > above) return number;
  throw new Error(`${name} is "${given}"; expected a number${above === 0 ? " above 0" : ""}.`);
}

/** A seed that was drawn, or the one behind --seed. */
export const seedArgument = (): number => numberArgument("--seed", Math.floor(Math.random() * 2 ** 31));
