/**
 * Plays mutants: each in a copy of the repository's source, until it is caught or its time is over.
 *
 * Caught is only what the suite meant to see: a violation of an invariant that the mutant's row names, model and PostgreSQL that
 * differ, or the named test that fails by an assertion. A mutant that cannot be applied or does not run is an error, not a catch.
 */
import { spawn } from 'node:child_process';
import { cp, mkdtemp, readFile, rm, symlink, writeFile } from 'node:fs/promises';
import { availableParallelism, tmpdir } from 'node:os';
import path from 'node:path';
import type { Mutant, Patch, Test } from './mutants.ts';
import { playApart } from './play-all.ts';
import type { Found } from './player.ts';

const root = path.resolve(import.meta.dirname, '../..');
/** What a mutant may take at most. */
const most = { seeds: 600, sequences: 36, verbs: 120 };

export interface Verdict {
  readonly mutant: Mutant;
  /** What was seen; null when nothing was, or the wrong thing. */
  readonly seen: string | null;
  /** `17 seeds`, `54 verbs`, `1 test`. */
  readonly effort: string;
  /** Why it does not count as caught. */
  readonly why: string | null;
}

/** `postgres`: the URL of a server with the template of the tests. Plays as many at once as there are cores. */
export async function playMutants(
  mutants: readonly Mutant[],
  { postgres, signal, onVerdict }: { postgres: string; signal?: AbortSignal; onVerdict?: (verdict: Verdict) => void },
): Promise<readonly Verdict[]> {
  const waiting = [...mutants.entries()];
  const verdicts: Verdict[] = [];
  async function work(): Promise<void> {
    const copy = await copyOfSource();
    try {
      for (let next = waiting.shift(); next; next = waiting.shift()) {
        signal?.throwIfAborted();
        const [place, mutant] = next;
        const verdict = await playMutant(mutant, { copy, postgres, signal });
        verdicts[place] = verdict;
        onVerdict?.(verdict);
      }
    } finally {
      await rm(copy, { recursive: true, force: true });
    }
  }
  await Promise.all(Array.from({ length: Math.min(availableParallelism(), mutants.length) }, work));
  return verdicts;
}

async function copyOfSource(): Promise<string> {
  const copy = await mkdtemp(path.join(tmpdir(), 'skrepka-mutants-'));
  for (const name of ['src', 'tests', 'contracts', 'package.json']) {
    await cp(path.join(root, name), path.join(copy, name), { recursive: true });
  }
  await symlink(path.join(root, 'node_modules'), path.join(copy, 'node_modules'));
  return copy;
}

interface Where {
  readonly copy: string;
  readonly postgres: string;
  readonly signal?: AbortSignal;
}

async function playMutant(mutant: Mutant, where: Where): Promise<Verdict> {
  const files = [...new Set(mutant.patches.map(({ file }) => file))];
  const originals = await Promise.all(files.map((file) => readFile(path.join(where.copy, file), 'utf8')));
  try {
    for (const [at, file] of files.entries()) {
      const ofFile = mutant.patches.filter((patch) => patch.file === file);
      await writeFile(path.join(where.copy, file), patched(originals[at] ?? '', ofFile));
    }
    return await judge(mutant, where);
  } catch (error) {
    where.signal?.throwIfAborted();
    return { mutant, seen: null, effort: '', why: error instanceof Error ? error.message : String(error) };
  } finally {
    for (const [at, file] of files.entries()) await writeFile(path.join(where.copy, file), originals[at] ?? '');
  }
}

/** Throws when the text of a patch is not there, or more than once: a mutant that changes nothing would prove nothing. */
export function patched(source: string, patches: readonly Patch[]): string {
  return patches.reduce((text, { file, find, replace }) => {
    const count = text.split(find).length - 1;
    if (count !== 1) throw new Error(`Expected one place in ${file} for the patch, found ${count}:\n${find}`);
    return text.replace(find, () => replace);
  }, source);
}

async function judge(mutant: Mutant, { copy, postgres, signal }: Where): Promise<Verdict> {
  const { by } = mutant;
  if (typeof by === 'object') return await runTest(mutant, by, { copy, postgres, signal });
  const env = { SKREPKA_TEST_POSTGRES: postgres };
  const order =
    by === 'seeds'
      ? ({ kind: 'seeds', first: 0, count: most.seeds, violationsMax: 1 } as const)
      : ({ kind: 'twins', sequences: most.sequences, verbs: most.verbs } as const);
  const { played, verbs, violations } = await playApart(order, { folder: copy, signal, env });
  const effort = by === 'seeds' ? `${played} seeds` : `${verbs} verbs`;
  const [found] = violations;
  if (!found) return { mutant, seen: null, effort, why: 'nothing was seen' };
  return {
    mutant,
    seen: asSeen(found),
    effort,
    why: isMeant(mutant, found) ? null : `not what it breaks: ${found.sentence}`,
  };
}

function isMeant({ kills }: Mutant, { invariant }: Found): boolean {
  return invariant === null || kills.includes(invariant);
}

function asSeen({ invariant, sentence }: Found): string {
  if (invariant !== null) return sentence;
  return sentence.replace(/^.*?differ in /, 'PostgreSQL differs in ').replace(/ (\[.*?\])(?=: \/)/, '');
}

/** The test must fail, by an assertion of its own. */
async function runTest(mutant: Mutant, { file, title }: Test, { copy, postgres, signal }: Where): Promise<Verdict> {
  const pattern = `--test-name-pattern=${title.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')}`;
  const child = spawn(process.execPath, ['--test', '--test-reporter=tap', pattern, file], {
    cwd: copy,
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, NODE_OPTIONS: undefined, SKREPKA_TEST_POSTGRES: postgres },
    stdio: ['ignore', 'pipe', 'ignore'],
    signal,
  });
  let said = '';
  child.stdout.on('data', (text: Buffer) => {
    said += text;
  });
  await new Promise((resolve, reject) => child.once('close', resolve).once('error', reject));
  const failed = said.includes('ERR_ASSERTION') && said.includes(`not ok`);
  const seen = failed ? `the test "${title}" failed` : null;
  return {
    mutant,
    seen,
    effort: '1 test',
    why: failed ? null : `the test did not fail by an assertion:\n${said.slice(-1500)}`,
  };
}
