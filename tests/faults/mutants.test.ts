/** The fault suite can fail: without any one of the guards that the protocol rests on it does, and every invariant is among what it sees. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, it } from 'node:test';
import { serverUrl } from '../support/postgres.ts';
import { tablesOf } from '../support/tidy-documents.ts';
import { mutants } from './mutants.ts';
import { patched, playMutants } from './mutants-play.ts';

const timeout = 1_800_000;
const invariants = Array.from({ length: 26 }, (_, index) => `I${index + 1}`);

describe('mutants', () => {
  it('are caught, every one of them', { timeout }, async (t) => {
    const verdicts = await playMutants(mutants, { postgres: await serverUrl() });
    for (const { mutant, effort, seen } of verdicts) t.diagnostic(`${mutant.name}: ${effort}, ${seen ?? 'NOT CAUGHT'}`);
    const alive = verdicts.flatMap(({ mutant, why }) => (why === null ? [] : [`${mutant.name}: ${why}`]));
    assert.deepEqual(alive, []);
    t.diagnostic(`mutants caught ${verdicts.length} of ${mutants.length}`);
  });

  it('have a name and a text of their own, found in the source', () => {
    assert.equal(new Set(mutants.map(({ name }) => name)).size, mutants.length);
    for (const { patches } of mutants) {
      for (const file of new Set(patches.map((patch) => patch.file))) {
        const source = readFileSync(file, 'utf8');
        assert.notEqual(
          patched(
            source,
            patches.filter((patch) => patch.file === file),
          ),
          source,
        );
      }
    }
  });

  it('whose text is not in the source, or is there twice, are an error', () => {
    const patch = { file: 'a.ts', find: 'guard', replace: '' };
    assert.throws(() => patched('nothing', [patch]), /Expected one place in a\.ts for the patch, found 0/);
    assert.throws(() => patched('guard and guard', [patch]), /found 2/);
  });
});

describe('docs/failures.md', () => {
  const rows = tablesOf(readFileSync('docs/failures.md', 'utf8'))
    .flatMap((table) => table.rows)
    .filter(({ cells }) => 'mutants' in cells);
  const listed = (id: string) => {
    const cell = rows.find(({ cells }) => cells.id === id)?.cells.mutants ?? '';
    return cell === '–' ? [] : cell.split(/\s*<br>\s*/);
  };

  it('has a row for every invariant, and each is killed by a mutant or has a test', () => {
    assert.deepEqual(
      rows.map(({ cells }) => cells.id),
      invariants,
    );
    for (const { cells } of rows) assert.ok(listed(cells.id ?? '').length > 0 || cells.test, `${cells.id} has neither`);
  });

  it('names at each invariant the mutants that are meant to break it', () => {
    for (const id of invariants) {
      const meant = mutants.filter(({ kills }) => kills[0] === id).map(({ name }) => name);
      assert.deepEqual(listed(id).sort(), meant.sort(), id);
    }
  });
});
