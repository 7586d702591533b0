/**
 * `npm run model [-- name…] [--large] [--trail]`: checks `model/pipeline.pml` by Spin and prints what was found.
 *
 * Ends with 1 when anything is not as expected: an instance that does not hold, a mutant that is not caught or by another
 * invariant than its own, a search that is not complete. `--large` adds the instances that take minutes and gigabytes,
 * `--trail` prints the steps to each failure. A name is a part of a check's.
 */
import { availableParallelism } from 'node:os';
import { parseArgs } from 'node:util';
import { type Check, checks } from './model-checks.ts';
import { available, commandOf, type Found, installCommand, runCheck } from './model-spin.ts';

/** How one check went. */
export interface Verdict {
  readonly check: Check;
  readonly found: Found;
  readonly asExpected: boolean;
}

const minutesMax = 5;
const minutesLargeMax = 90;

/** As many at once as there are cores; `tell` hears each when it is done. */
export async function runChecks(
  wanted: readonly Check[],
  tell: (verdict: Verdict) => void = () => {},
): Promise<readonly Verdict[]> {
  const left = [...wanted];
  const verdicts: Verdict[] = [];
  const lane = async () => {
    for (let check = left.shift(); check; check = left.shift()) {
      const found = await runCheck(check, check.large ? minutesLargeMax : minutesMax);
      const asExpected = found.result.split(' ').includes(check.expected);
      const verdict = { check, found, asExpected };
      verdicts.push(verdict);
      tell(verdict);
    }
  };
  await Promise.all(Array.from({ length: availableParallelism() }, lane));
  return verdicts;
}

async function main(): Promise<number> {
  const options = { large: { type: 'boolean' }, trail: { type: 'boolean' }, help: { type: 'boolean' } } as const;
  const { values, positionals } = parseArgs({ options, allowPositionals: true });
  const named = (check: Check) => positionals.some((part) => check.name.includes(part));
  const wanted = checks.filter((check) => (positionals.length > 0 ? named(check) : values.large || !check.large));
  if (values.help || wanted.length === 0) {
    console.log(`npm run model [-- name…] [--large] [--trail]\n\n${checks.map(helpOf).join('\n')}`);
    return values.help ? 0 : 2;
  }
  if (!available()) {
    console.error(installCommand);
    return 1;
  }
  console.log(headline);
  const verdicts = await runChecks(wanted, (verdict) => {
    console.log(rowOf(verdict));
    if (values.trail && verdict.found.trail.length > 0) console.log(`${verdict.found.trail.join('\n')}\n`);
    if (!verdict.asExpected) console.log(`  expected ${verdict.check.expected}; by hand: ${commandOf(verdict.check)}`);
  });
  const mutants = verdicts.filter(({ check }) => check.expected.startsWith('I'));
  const wrong = verdicts.filter(({ asExpected }) => !asExpected);
  console.log(`\n${verdicts.length} searches, ${wrong.length} not as expected`);
  console.log(`mutants caught ${mutants.filter(({ asExpected }) => asExpected).length} of ${mutants.length}`);
  return wrong.length > 0 ? 1 : 0;
}

const helpOf = ({ name, says, large }: Check) => `  ${name.padEnd(22)} ${says}${large ? ' (large)' : ''}`;

const columns = (name: string, cells: readonly string[], result: string) =>
  `${name.padEnd(22)} ${cells.map((cell) => cell.padStart(12)).join(' ')}  ${result}`;

const headline = columns('property or mutant', ['states', 'transitions', 'depth', 'seconds'], 'result');

function rowOf({ check, found, asExpected }: Verdict): string {
  const cells = [found.states, found.transitions, found.depth].map((number) => number.toLocaleString('en'));
  const result = found.result.startsWith('I') ? `breaks ${found.result}` : found.result;
  return columns(
    check.name,
    [...cells, found.seconds.toFixed(1)],
    `${result}${asExpected ? '' : '  NOT AS EXPECTED'}: ${check.says}`,
  );
}

if (import.meta.main) process.exitCode = await main();
