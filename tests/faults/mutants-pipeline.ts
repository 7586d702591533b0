/** Mutants of the pipeline's modules: each takes a rule of the protocol away and leaves everything else as it is. */
import type { Mutant } from './mutants.ts';

const of =
  (file: string) =>
  (find: string, replace: string): Mutant['patches'][number] => ({ file: `src/pipeline/${file}.ts`, find, replace });
const accept = of('accept');
const relay = of('relay');
const worker = of('worker');
const outcome = of('outcome');
const janitor = of('janitor');
const strays = of('strays');
const job = of('job');

const ofAccept: readonly Mutant[] = [
  {
    name: 'an unknown commit deletes its staging object',
    kills: ['I3', 'I1', 'I20'],
    by: 'seeds',
    patches: [accept('if (!isUnknown(error)) await blobs.deleteMany', 'await blobs.deleteMany')],
  },
  {
    name: 'an unknown commit is a refusal',
    kills: ['I3', 'I1', 'I20'],
    by: 'seeds',
    patches: [
      accept(
        'if (!attachment) throw unavailable(error);',
        "if (!attachment) throw new SkrepkaError('upload_expired');",
      ),
    ],
  },
  {
    name: 'the 202 does not wait for its commit',
    kills: ['I1'],
    by: 'seeds',
    patches: [
      accept(
        'const attachment = await commit(row);',
        'void commit(row).catch(() => undefined);\n      const attachment = { ...row } as unknown as Attachment;',
      ),
    ],
  },
  {
    name: 'a put that failed is taken on trust',
    kills: ['I3'],
    by: 'seeds',
    patches: [
      accept(
        'await blobs.put(staging, received.bytes, { signal: upload.signal, verify: true });',
        'await blobs\n        .put(staging, received.bytes, { signal: upload.signal, verify: true })\n        .catch(() => ({ size: received.facts().size }));',
      ),
    ],
  },
  {
    name: 'an object is accepted without being verified',
    kills: ['I3'],
    by: {
      file: 'tests/pipeline/accept.test.ts',
      title: 'for an object that is not whole in the storage keeps nothing',
    },
    patches: [accept('if (size !== facts.size) {', 'if (size === undefined) {')],
  },
  {
    name: 'the answer that a key was given is not looked for',
    kills: ['I4'],
    by: 'seeds',
    patches: [
      accept(
        "if (reservation.kind === 'answered') return { attachment: await replay(upload, body, reservation), replayed: true };",
        "if (reservation.kind === 'answered') return { attachment: await takeIn(upload, body, null), replayed: false };",
      ),
    ],
  },
  {
    name: 'the commit does not answer its key',
    kills: ['I4'],
    by: 'seeds',
    patches: [accept('reservation: key && {', 'reservation: null && {')],
  },
  {
    name: 'admission does not count who waits',
    kills: ['I5'],
    by: 'seeds',
    patches: [of('admission')('if (over <= 0 && bytesOver <= 0) return;', 'if (over <= 1e9) return;')],
  },
];

const ofRelay: readonly Mutant[] = [
  {
    name: 'a bell is marked before the broker confirmed it',
    kills: ['I14'],
    by: 'seeds',
    patches: [
      relay(
        '      await broker.publish(ringId(ring),',
        '      await store.markRung(ring, { baseMs: settings.reringMs, capMs: settings.reringCapMs, jitter: 1 });\n      await broker.publish(ringId(ring),',
      ),
    ],
  },
  {
    name: 'a bell that was confirmed does not ring again',
    kills: ['I16', 'I6'],
    by: 'seeds',
    patches: [relay('const jitter = 0.8 + 0.4 * clock.random();', 'const jitter = 1e9;')],
  },
  {
    name: 'a bell rings again at once, for ever',
    kills: ['I17'],
    by: 'seeds',
    patches: [relay('const baseMs = Math.max(settings.reringMs, 3 * pace.waitMs);', 'const baseMs = 1;')],
  },
  {
    name: 'a relay makes everything ring again in each round',
    kills: ['I17'],
    by: 'seeds',
    patches: [relay('      disrupted = false;\n      const again', '      const again')],
  },
  {
    name: 'a message carries a file name',
    kills: ['I25'],
    by: 'seeds',
    patches: [job('    v: 1,\n', "    v: 1,\n    name: 'cat.jpg',\n")],
  },
];

const ofClaim: readonly Mutant[] = [
  {
    name: 'a delivery is acked before the settle',
    kills: ['I15'],
    by: 'seeds',
    patches: [
      worker(
        '      const outcome = await settle(claim, result, deps, settings, lease.signal);',
        '      await ended(delivery);\n      const outcome = await settle(claim, result, deps, settings, lease.signal);',
      ),
    ],
  },
  {
    name: 'a worker that lost its lease acks',
    kills: ['I13', 'I15'],
    by: 'seeds',
    patches: [worker("    if (outcome === 'lost') return;\n", '')],
  },
  {
    name: 'a claim of unknown outcome is acked',
    kills: ['I15', 'I13'],
    by: 'seeds',
    patches: [worker('if (!result) return;', 'if (!result) return ended(delivery);')],
  },
  {
    name: 'a settle of unknown outcome counts as done',
    kills: ['I15'],
    by: 'seeds',
    patches: [
      outcome(
        "      unknown ||= error.fault === 'unknown';",
        "      if (error.fault === 'unknown') return 'ready' as T;\n      unknown ||= error.fault === 'unknown';",
      ),
    ],
  },
  {
    name: 'a lease is renewed by nobody',
    kills: ['I6', 'I18'],
    by: 'seeds',
    patches: [
      worker(
        'await clock.sleep(settings.renewMs, over.signal);',
        'await clock.sleep(settings.renewMs * 1000, over.signal);',
      ),
    ],
  },
  {
    name: 'a worker does not watch its own deadline',
    kills: ['I13'],
    by: 'seeds',
    patches: [worker("if (leftMs <= 0) return breakOff('expired');", 'if (leftMs <= 0) return;')],
  },
  {
    name: 'a message is held back before the store agreed',
    kills: ['I13'],
    by: 'seeds',
    patches: [
      worker(
        '        const calledMs = clock.monotonicMs();',
        '        const calledMs = clock.monotonicMs();\n        void delivery.extend().catch(() => undefined);',
      ),
    ],
  },
  {
    name: 'a drain does not break off what runs',
    kills: ['I21'],
    by: 'seeds',
    patches: [worker("const drain = () => breakOff('drain');", 'const drain = () => {};')],
  },
  {
    name: 'a worker that starves tells nobody',
    kills: ['I23'],
    by: 'seeds',
    patches: [
      worker(
        "meter.gauge('worker_starved_seconds', (await waitingMs(hungryForMs)) / 1000);",
        'await waitingMs(hungryForMs);',
      ),
    ],
  },
];

const ofOutcome: readonly Mutant[] = [
  {
    name: 'a drain does not give its attempt back',
    kills: ['I21'],
    by: 'seeds',
    patches: [outcome("if (error.why === 'lost') return 'lost';", "return 'lost';")],
  },
  {
    name: 'a release counts a failure',
    kills: ['I18', 'I13'],
    by: 'seeds',
    patches: [
      outcome(
        'return await deps.store.release(claim.attempt, { reason, delayMs, graceMs: settings.graceMs, who: deps.who });',
        "return await deps.store.fail(claim.attempt, { code: 'internal', detail: reason, retryMs: delayMs }, { budgets: settings, graceMs: settings.graceMs, who: deps.who });",
      ),
    ],
  },
  {
    name: 'an outage of the storage is the job’s fault',
    kills: ['I18'],
    by: 'seeds',
    patches: [
      outcome(
        "if (error instanceof StoreError || (error instanceof BlobError && error.fault === 'unavailable')) {",
        'if (error instanceof StoreError) {',
      ),
    ],
  },
  {
    name: 'failures have no end',
    kills: ['I6'],
    by: 'seeds',
    patches: [
      job(
        "  if (fate === 'twice' && strikes >= 2) return true;\n  return failures >= budgets.attemptsMax;",
        '  return strikes < 0;',
      ),
    ],
  },
  {
    name: 'one variant is not stored',
    kills: ['I7'],
    by: 'seeds',
    patches: [
      outcome('[...(rendered.rendering?.variants ?? [])]', '[...(rendered.rendering?.variants.slice(1) ?? [])]'),
    ],
  },
  {
    name: 'a put that failed is published',
    kills: ['I11'],
    by: 'seeds',
    patches: [
      outcome(
        '    await deps.blobs.put(key, body, { contentType: picture.contentType, signal });\n    await verifyStored(deps.blobs, key, picture, signal);',
        '    await deps.blobs.put(key, body, { contentType: picture.contentType, signal }).catch(() => undefined);',
      ),
    ],
  },
  {
    name: 'what was stored is not read back',
    kills: ['I11'],
    by: {
      file: 'tests/pipeline/worker.test.ts',
      title: 'of a put whose bytes are not those that were sent are found by reading back',
    },
    patches: [outcome('    await verifyStored(deps.blobs, key, picture, signal);\n', '')],
  },
  {
    name: 'attempts share the keys of their objects',
    kills: ['I11', 'I20', 'I13'],
    by: 'seeds',
    patches: [
      of('attachment')(
        'attemptId: string): string {',
        "attemptId: string): string {\n  if (fence > 0) return ['attachments', attachmentId, 'v' + version, ''].join('/');",
      ),
    ],
  },
];

const ofJanitor: readonly Mutant[] = [
  {
    name: 'a clean-up does not look its rows up',
    kills: ['I20'],
    by: {
      file: 'tests/pipeline/janitor.test.ts',
      title: 'a clean-up that names what a row still names deletes nothing',
    },
    patches: [janitor('const named = await store.namedAmong(keys);', 'const named = new Set<string>();')],
  },
  {
    name: 'orphans are deleted because no listing knew them',
    kills: ['I20', 'I11', 'I1'],
    by: 'seeds',
    patches: [
      strays(
        'const named = await store.namedAmong(objects.map(({ key }) => key));',
        'const named = new Set<string>();',
      ),
      janitor(
        'const scheduled = await strays.schedule(page.strays, { unknown: false });',
        'const scheduled = page.strays.length;\n        await blobs.deleteMany(page.strays.map(({ key }) => key));',
      ),
    ],
  },
  {
    name: 'the staging object of an upload that is on its way is an orphan',
    kills: ['I3', 'I1', 'I20'],
    by: 'seeds',
    patches: [strays('clock.wallMs() - ages[place]', 'clock.wallMs() + 10_000')],
  },
  {
    name: 'nobody searches for strays',
    kills: ['I19', 'I26'],
    by: 'seeds',
    patches: [janitor('for (const goOn of searches) searching', 'for (const goOn of searches.slice(2)) searching')],
  },
];

export const pipelineMutants: readonly Mutant[] = [...ofAccept, ...ofRelay, ...ofClaim, ...ofOutcome, ...ofJanitor];
