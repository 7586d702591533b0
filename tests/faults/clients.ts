/** The clients of a schedule: each sends one upload until it is answered, or until it has lost its patience. */
import { SkrepkaError } from '../../src/errors.ts';
import type { Upload } from '../../src/pipeline/accept.ts';
import { fatal, type Scene } from './stage.ts';

const pictures = ['good', 'good', 'good', 'good', 'slow', 'corrupt', 'crash', 'killer'] as const;
const userIds = ['019b0000-0000-7000-8000-00000000000a', '019b0000-0000-7000-8000-00000000000b'] as const;
/** With a key; without one it cannot know whether it was taken, so it does not send twice. */
const triesMax = 40;

/** Upload `number`: the same key, the same bytes, however often. */
export function client(scene: Scene, number: number): void {
  const { world, cast, asking, watch } = scene;
  const kind = number < 4 ? 'good' : world.pick(pictures);
  const source = world.random() < 0.1 ? `text ${number}` : `IMG ${kind} ${number}`;
  const userId = world.pick(userIds);
  const key = world.random() < 0.8 ? `key-${number}` : null;
  const name = `upload ${number}`;
  let tries = 0;

  function send(): void {
    tries += 1;
    if (tries > (key === null ? 1 : triesMax)) {
      asking.delete(name);
      return;
    }
    const apis = cast.awake('api');
    const api = apis.length === 0 ? null : world.pick(apis);
    let isOver = false;
    const next = (delayMs: number) => {
      if (isOver) return;
      isOver = true;
      world.after(delayMs, send);
    };
    // Nobody there, or no answer: sent again with its key.
    world.after(30_000, () => next(1));
    if (!api?.accept) {
      next(2_000);
      return;
    }
    api.accept.accept(uploadOf(userId, source, key), chunks(source)).then(
      ({ attachment }) => {
        if (!api.process.alive) return;
        scene.answered.push({ id: attachment.id, userId, source, key });
        if (isOver) return;
        isOver = true;
        asking.delete(name);
      },
      (error: unknown) => {
        if (!(error instanceof SkrepkaError)) return world.fail(error);
        fatal(world, () => watch.refused(error.code));
        next(1_000 * (error.retryAfterSeconds ?? 2));
      },
    );
  }
  send();
}

function uploadOf(userId: string, source: string, key: string | null): Upload {
  return {
    userId,
    fileName: 'a.jpg',
    declaredType: null,
    declaredSize: source.length,
    sizeMax: source.length,
    idempotencyKey: key,
    traceparent: null,
    signal: new AbortController().signal,
    trailer: async () => ({ alt: null, sha256: null }),
  };
}

async function* chunks(text: string): AsyncGenerator<Uint8Array> {
  yield Buffer.from(text.slice(0, 5));
  yield Buffer.from(text.slice(5));
}
