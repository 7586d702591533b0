/**
 * One check of the model by Spin: generated, compiled, run and, where it fails, its trail read, in a temporary folder of its own.
 *
 * Searches are exhaustive: no bit-state hashing, no reduction, and one that ends at its depth or memory counts as not run. A mutant is
 * searched breadth first, so that its trail is among the shortest.
 */
import { execFile, spawnSync } from 'node:child_process';
import { copyFile, mkdtemp, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { promisify } from 'node:util';
import type { Check } from './model-checks.ts';

const execute = promisify(execFile);
const source = path.resolve(import.meta.dirname, '../model/pipeline.pml');
const defaultDepthMax = 1_000_000;
const outputBytesMax = 64 * 1024 * 1024;

/** What to say where a program is missing. */
export const installCommand = 'spin or gcc is missing: apt-get install --no-install-recommends spin gcc libc6-dev';

export function available(): boolean {
  return ['spin', 'gcc'].every((program) => spawnSync(program, [program === 'spin' ? '-V' : '--version']).status === 0);
}

export interface Found {
  /** `holds`, the invariants whose assertion failed, as `I8`, `reached`, or `incomplete`. */
  readonly result: string;
  readonly states: number;
  readonly transitions: number;
  readonly depth: number;
  readonly seconds: number;
  /** Steps to the failure, in words; empty where there is none. */
  readonly trail: readonly string[];
}

/** Rejects when Spin or the compiler does, or when `minutesMax` are over. */
export async function runCheck(
  check: Check,
  minutesMax: number,
  { depthMax = defaultDepthMax }: { depthMax?: number } = {},
): Promise<Found> {
  const folder = await mkdtemp(path.join(tmpdir(), 'skrepka-model-'));
  const run = (file: string, args: readonly string[]) =>
    execute(file, args, { cwd: folder, maxBuffer: outputBytesMax, timeout: minutesMax * 60_000 });
  try {
    await copyFile(source, path.join(folder, 'pipeline.pml'));
    const defines = definesOf(check);
    await run('spin', [...defines, '-a', 'pipeline.pml']);
    await run('gcc', [...compilation(check), '-o', 'pan', 'pan.c']);
    const startedMs = performance.now();
    const fairly = check.eventually ? ['-a', '-f', '-N', check.eventually] : [];
    const { stdout } = await run('./pan', [...fairly, `-m${depthMax}`, '-w24']);
    const seconds = (performance.now() - startedMs) / 1000;
    const failed = countIn(stdout, /errors: (\d+)/) > 0;
    const trail = failed ? (await run('spin', [...defines, '-t', '-p', 'pipeline.pml']).catch(outputOf)).stdout : '';
    return {
      result: failed ? await brokenBy(check, trail) : isWhole(stdout) ? 'holds' : 'incomplete',
      states: countIn(stdout, /(\d+) states, stored/),
      transitions: countIn(stdout, /(\d+) transitions/),
      depth: countIn(stdout, /depth reached (\d+)/),
      seconds,
      trail: failed ? await stepsOf(trail) : [],
    };
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

/** The command by which a check can be made by hand, in an empty folder. */
export function commandOf(check: Check): string {
  const fairly = check.eventually ? `-a -f -N ${check.eventually} ` : '';
  return [
    `spin ${definesOf(check).join(' ')} -a model/pipeline.pml`,
    `gcc ${compilation(check).join(' ')} -o pan pan.c`,
    `./pan ${fairly}-m${defaultDepthMax} -w24`,
  ].join(' && ');
}

function definesOf(check: Check): string[] {
  const sizes = Object.entries(check.instance).map(([name, value]) => `-D${name}=${value}`);
  return [...sizes, ...(check.without ? [`-DM_${check.without}`] : []), ...(check.eventually ? ['-DLIVE'] : [])];
}

/**
 * Nothing to reduce: every variable is shared. Fairness needs room for eleven processes. Small instances are not optimized: that took
 * 4.6 s where a search takes one, and 0.7 s without it.
 */
function compilation(check: Check): string[] {
  const always = ['-w', check.large ? '-O2' : '-O0', '-DNOREDUCE'];
  if (check.eventually) return [...always, '-DNFAIR=4'];
  return [...always, '-DSAFETY', ...(check.expected === 'holds' ? [] : ['-DBFS'])];
}

function isWhole(output: string): boolean {
  return /errors: 0/.test(output) && !/max search depth too small|Search not completed|out of memory/i.test(output);
}

/** Replaying a trail ends with the failure that it leads to. */
function outputOf(error: unknown): { stdout: string } {
  return { stdout: String((error as { stdout?: unknown }).stdout ?? '') };
}

/** The invariants that stand beside the assertion, or `reached`; a cycle without an end breaks I6. */
async function brokenBy(check: Check, trail: string): Promise<string> {
  if (check.eventually) return 'I6';
  const line = countIn(trail, /pipeline\.pml:(\d+), Error: assertion violated/);
  const invariants = (await lines())[line - 1]?.match(/\bI\d+\b|\breached\b/g) ?? [];
  return invariants.length > 0 ? invariants.join(' ') : `the assertion of line ${line}`;
}

/** Each step with the process that made it, and its line of the model. */
async function stepsOf(trail: string): Promise<readonly string[]> {
  const text = await lines();
  const steps: string[] = [];
  let last = '';
  for (const found of trail.matchAll(
    /^\s*(\d+):\s+proc\s+(\d+) \(:?(\w+)[^)]*\) pipeline\.pml:(\d+)|<<<<<START OF CYCLE>>>>>/gm,
  )) {
    const [, step = '', pid = '', process = 'and so on for ever', line = '0'] = found;
    if (step !== '' && step === last) continue;
    last = step;
    steps.push(`${step.padStart(4)}  ${`${process} ${pid}`.padEnd(14)} ${(text[Number(line) - 1] ?? '').trim()}`);
  }
  return steps;
}

async function lines(): Promise<readonly string[]> {
  return (await readFile(source, 'utf8')).split('\n');
}

function countIn(text: string, pattern: RegExp): number {
  return Number(pattern.exec(text)?.[1] ?? 0);
}
