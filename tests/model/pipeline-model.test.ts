/** The model of the protocol, checked by Spin on instances that are small enough for every run. `docs/model.md` has the large ones. */
import assert from 'node:assert/strict';
import test, { describe, it } from 'node:test';
import { runChecks, type Verdict } from '../../scripts/model.ts';
import { type Check, checks } from '../../scripts/model-checks.ts';
import { available, installCommand, runCheck } from '../../scripts/model-spin.ts';

const small = checks.filter((check) => !check.large);
const isMutant = ({ expected }: Check) => expected.startsWith('I');

if (available()) describe('the model', { timeout: 900_000 }, suite);
else test('the model of the protocol is checked by Spin', (context) => context.skip(installCommand));

function suite(): void {
  it('holds on every small instance: safe at each step, quiet at rest, and every job finishes', async () => {
    const wanted = small.filter((check) => check.expected === 'holds' && !check.without);
    asExpected(await runChecks(wanted), 13);
  });

  it('reaches what it is about: superseded, exhausted, read back, deleted, lost', async () => {
    asExpected(await runChecks(small.filter(({ expected }) => expected === 'reached')), 9);
  });

  it('breaks with each guard that is taken away, at the invariant that the guard protects, and shows how', async () => {
    const verdicts = await runChecks(small.filter(isMutant));
    asExpected(verdicts, 27);
    const silent = verdicts.filter(({ found }) => found.trail.length === 0);
    assert.deepEqual(
      silent.map(({ check }) => check.name),
      [],
    );
  });

  it('holds with one of two guards that stand side by side', async () => {
    asExpected(await runChecks(small.filter((check) => check.expected === 'holds' && check.without)), 4);
  });

  it('is told to be incomplete when the search is', async () => {
    const [upload] = small;
    assert.ok(upload);
    const found = await runCheck(upload, 5, { depthMax: 20 });
    assert.equal(found.result, 'incomplete');
  });
}

function asExpected(verdicts: readonly Verdict[], atLeast: number): void {
  assert.ok(verdicts.length >= atLeast, `${verdicts.length} checks`);
  const wrong = verdicts.filter((verdict) => !verdict.asExpected);
  assert.deepEqual(
    wrong.map(({ check, found }) => `${check.name}: expected ${check.expected}, found ${found.result}`),
    [],
  );
}
