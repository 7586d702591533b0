/**
 * What processes cost, as Linux counts it in `/proc`: time on the processor and memory, of whole families of processes.
 *
 * A family is a process with all its living descendants. Time of descendants that ended counts as well: whoever reaped them
 * keeps it. The kernel tells it in ticks of 10 ms, two of them a process, so a measurement should take a second of it or more.
 */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';

/** Of Linux on every platform that Node runs on (`getconf CLK_TCK`). */
const ticksPerSecond = 100;
const readingsMax = 20;

/**
 * Milliseconds on the processor so far, user and system, of these processes and their families; a process is counted once,
 * however many of the roots lead to it. It only grows, so the difference of two readings is what was spent between them.
 * Throws when a root is gone: what it had spent cannot be told any more.
 */
export async function cpuMsOf(roots: readonly number[]): Promise<number> {
  let ticks = 0;
  for (const { spent, reaped } of familyOf(roots)) ticks += spent + reaped;
  return (ticks * 1000) / ticksPerSecond;
}

/** The most memory that the process ever had resident, MiB (`VmHWM`). Throws when it is gone. */
export async function peakMiBOf(pid: number): Promise<number> {
  return kibibytes(pid, 'status', 'VmHWM') / 1024;
}

/** Forgets the peak of a process: `peakMiBOf` then tells the most it had since. Takes its owner or root. */
export async function resetPeak(pid: number): Promise<void> {
  writeFileSync(`/proc/${pid}/clear_refs`, '5');
}

/** Memory resident of one process alone, MiB, counted as its peak is (`VmRSS`). */
export async function residentMiBOfProcess(pid: number): Promise<number> {
  return kibibytes(pid, 'status', 'VmRSS') / 1024;
}

/**
 * Memory resident now of these processes and their families, MiB. A page that several share is divided among them (`Pss`): a
 * sum of resident sizes would count the program of Node and the shared memory of PostgreSQL once for every process.
 */
export async function residentMiBOf(roots: readonly number[]): Promise<number> {
  let sum = 0;
  for (const { pid, ended } of familyOf(roots)) {
    if (!ended) sum += kibibytesIfAlive(pid, 'smaps_rollup', 'Pss') ?? 0;
  }
  return sum / 1024;
}

/** Pids of these processes and of all their living descendants. Throws when a root is gone. */
export function familyPidsOf(roots: readonly number[]): number[] {
  return familyOf(roots).map(({ pid }) => pid);
}

/** The least of the values that `p` percent of them do not exceed (nearest rank). `p` is 0 to 100. Throws for no values at all. */
export function percentile(sorted: readonly number[], p: number): number {
  if (!(p >= 0 && p <= 100) || (p > 0 && p < 1)) throw new Error(`Expected a percentage from 1 to 100, received ${p}`);
  const value = sorted[Math.max(0, Math.ceil((p / 100) * sorted.length) - 1)];
  if (value === undefined) throw new Error(`Expected values to take percentile ${p} of, received none`);
  return value;
}

/** The middle value, or the mean of the two in the middle; in any order. Throws for no values at all. */
export function median(values: readonly number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const upper = sorted[Math.floor(sorted.length / 2)];
  const lower = sorted[Math.ceil(sorted.length / 2) - 1];
  if (upper === undefined || lower === undefined)
    throw new Error('Expected values to take the median of, received none');
  return (lower + upper) / 2;
}

/* ------------------------------------------------------------------ /proc */

interface Process {
  readonly pid: number;
  readonly parent: number;
  /** A zombie: its time is here until its parent reaps it. */
  readonly ended: boolean;
  /** Ticks of its own. */
  readonly spent: number;
  /** Ticks of its ended children, and of what those had reaped. */
  readonly reaped: number;
}

/** Read again until no process of the family came or went meanwhile: one that is reaped between two lines is missed or doubled. */
function familyOf(roots: readonly number[]): readonly Process[] {
  let family = familyIn(readProcesses(), roots);
  for (let reading = 1; reading < readingsMax; reading += 1) {
    const again = familyIn(readProcesses(), roots);
    if (again.length === family.length && again.every(({ pid }, at) => pid === family[at]?.pid)) return again;
    family = again;
  }
  // Processes come and go faster than they can be read; what is off by then is a process or two.
  return family;
}

function familyIn(processes: ReadonlyMap<number, Process>, roots: readonly number[]): Process[] {
  const children = new Map<number, Process[]>();
  for (const one of processes.values()) children.set(one.parent, [...(children.get(one.parent) ?? []), one]);
  const found = new Map<number, Process>();
  const open: Process[] = [];
  for (const root of roots) {
    const one = processes.get(root);
    if (!one) throw new Error(`Process ${root} is gone, and what it spent with it`);
    open.push(one);
  }
  for (let one = open.pop(); one; one = open.pop()) {
    if (found.has(one.pid)) continue;
    found.set(one.pid, one);
    open.push(...(children.get(one.pid) ?? []));
  }
  return [...found.values()].sort((one, other) => one.pid - other.pid);
}

function readProcesses(): Map<number, Process> {
  const processes = new Map<number, Process>();
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const line = read(`/proc/${name}/stat`);
    if (line === null) continue;
    // The name of the program comes first and may hold anything, brackets included. After it: proc(5), fields 3 and on.
    const fields = line.slice(line.lastIndexOf(')') + 2).split(' ');
    const ticks = (at: number) => Number(fields[at - 3]);
    const [spent, reaped] = [ticks(14) + ticks(15), ticks(16) + ticks(17)];
    processes.set(Number(name), { pid: Number(name), parent: ticks(4), ended: fields[0] === 'Z', spent, reaped });
  }
  return processes;
}

function kibibytes(pid: number, file: string, field: string): number {
  const value = kibibytesIfAlive(pid, file, field);
  if (value === null) throw new Error(`Process ${pid} is gone, and its memory with it`);
  return value;
}

/** Null when the process ended. */
function kibibytesIfAlive(pid: number, file: string, field: string): number | null {
  const found = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(read(`/proc/${pid}/${file}`) ?? '');
  return found ? Number(found[1]) : null;
}

/** Null when the process ended before or during the read. */
function read(file: string): string | null {
  try {
    return readFileSync(file, 'utf8');
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ESRCH') return null;
    throw error;
  }
}
