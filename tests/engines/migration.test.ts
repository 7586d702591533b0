/**
 * A running system moves from one broker to another with jobs outstanding: stop, change BROKER_URL, start. Nothing is lost,
 * since the broker is only a bell: what the old one held rings again on the new one.
 */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { photograph, scene } from '../contract/journeys.ts';
import { register } from '../support/client.ts';
import { available as hasNats, installCommand as installNats, startNats } from '../support/engines/nats.ts';
import { available as hasRabbit, installCommand as installRabbit, startRabbit } from '../support/engines/rabbitmq.ts';
import { available as hasValkey, installCommand as installValkey, startValkey } from '../support/engines/valkey.ts';
import { until } from '../support/until.ts';

const missing = [
  ...(hasNats() ? [] : [installNats]),
  ...(hasRabbit() ? [] : [installRabbit]),
  ...(hasValkey() ? [] : [installValkey]),
];

if (missing.length === 0) test('a system moves from broker to broker with jobs outstanding and loses nothing', moves);
else test('a system moves between real brokers', (context) => context.skip(missing.join(' && ')));

async function moves(t: TestContext): Promise<void> {
  const [nats, rabbit, valkey] = await Promise.all([startNats(t), startRabbit(t), startValkey(t)]);
  const s = await scene(t);
  const accepted: string[] = [];
  let url = '';
  const user = await (async () => {
    const first = await s.start(['api']);
    url = first.url;
    const registered = await register(() => url);
    assert.equal(await first.stop(), 0);
    return registered;
  })();
  for (const broker of ['postgres:', nats.url, rabbit.url, valkey.url, 'postgres:']) {
    const last = accepted.length === 16;
    const api = await s.start(['api', 'relay', 'janitor'], {}, { BROKER_URL: broker });
    url = api.url;
    for (let i = 0; i < 4; i += 1)
      accepted.push((await user.upload(Buffer.concat([photograph, Buffer.from([i, accepted.length])]))).id);
    await until('the new jobs are announced on this broker', async () => {
      const { rows } = await s.pool.query(`select 1 from jobs where state = 'queued' and confirmed = 0`);
      return rows.length === 0;
    });
    // Each broker gets some of the work done, and leaves some behind.
    if (!last) {
      const worker = await s.start(['worker'], { 'worker.acked': 'kill' }, { BROKER_URL: broker });
      await worker.ended;
    } else await s.start(['worker'], {}, { BROKER_URL: broker });
    if (!last) assert.equal(await api.stop(), 0);
  }
  for (const id of accepted) await user.until(id, 'ready');
  assert.deepEqual([await s.count('attachments'), await s.count('variants')], [20, 60]);
  const { rows } = await s.pool.query('select 1 from jobs where failures > 0');
  assert.equal(rows.length, 0);
  await s.assertTidy();
}
