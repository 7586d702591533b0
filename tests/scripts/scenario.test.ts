/** `npm run scenario`: the demonstrations hold, tell no secret, and clear away after themselves, also when interrupted. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { assertCleared, assertOperated, scenario } from '../support/scenario.ts';

describe('level 3', () => {
  test('the scenario holds from the 202 over the deaths to the thumbnail, and leaves nothing running', async () => {
    const { code, output } = await scenario();
    assert.equal(code, 0, output);
    assert.match(output, /All \d\d expectations held\.$/m);
    const attachments = [...output.matchAll(/attachment ([0-9a-f-]{36})/g)].map(([, id]) => id);
    assert.equal(attachments.length, 2, output);
    assert.equal(attachments[0], attachments[1], 'the same attachment is accepted and ready');
    assert.doesNotMatch(output, /skr_|bearer|password/i);
    await assertCleared(output);
  });

  test('an interrupted scenario fails and leaves nothing running', async () => {
    const { code, output } = await scenario([], { interruptAt: /queued/ });
    assert.equal(code, 1, output);
    await assertCleared(output);
  });
});

describe('level 4', () => {
  test('deaths between two writes, a replay and a hung worker are told and hold on the embedded engines', async () => {
    await assertOperated(await scenario(['--level', '4']));
  });

  test('an interruption in the middle of an act fails it, and leaves nothing running', async () => {
    const { code, output } = await scenario(['--level', '4'], { interruptAt: /a relay and a janitor start/ });
    assert.equal(code, 1, output);
    assert.match(output, /Interrupted\./);
    await assertCleared(output);
  });
});

describe('the command', () => {
  test('tells with --help what it can do, and does nothing else', async () => {
    const { code, output } = await scenario(['--help']);
    assert.equal(code, 0);
    for (const word of ['--level 3', '--level 4', 'embedded', 'jetstream-s3']) assert.ok(output.includes(word), word);
  });

  test('says of words that it does not know what it expects, and ends with 2', async () => {
    const unknown: [words: string[], says: RegExp][] = [
      [['--level', '5'], /Expected 3 or 4 for --level, received "5"/],
      [['--engines', 'kafka'], /Expected embedded or jetstream-s3 for --engines, received "kafka"/],
      [['--loud'], /--loud[\s\S]*Usage: npm run scenario/],
    ];
    for (const [words, says] of unknown) {
      const { code, output } = await scenario(words);
      assert.equal(code, 2, output);
      assert.match(output, says);
    }
  });

  test('says how to install servers that are missing, and ends with 2', async () => {
    const words = ['--level', '4', '--engines', 'jetstream-s3'];
    const { code, output } = await scenario(words, { environment: { PATH: '/nowhere' } });
    assert.equal(code, 2, output);
    assert.match(output, /apt-get install --no-install-recommends nats-server radosgw ceph-mon ceph-osd/);
  });
});
