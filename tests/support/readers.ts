/** Readers of an attachment while its variants are replaced: one that never stops asking, one that never hurries. */
import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';
import type { TestContext } from 'node:test';
import sharp from 'sharp';
import { sha256 } from './client.ts';
import type { User } from './journey.ts';

/** Reads an attachment and its variants over and over; tells what was not ready, not 200 or of no set that was ever shown. */
export function watch(user: User, id: string) {
  let over = false;
  const wrong: string[] = [];
  const digests = new Set<string>();
  const loop = (async () => {
    while (!over) {
      const shown = await user.attachment(id);
      if (shown.state !== 'ready') wrong.push(shown.state);
      for (const variant of shown.variants) {
        digests.add(variant.sha256);
        const response = await user.ask(variant.url);
        const bytes = Buffer.from(await response.arrayBuffer());
        const digest = sha256(bytes);
        // Replaced between the two requests: then it is one of the set that comes next.
        if (!digests.has(digest)) digests.add((await named(user, id, digest)) ?? 'none');
        if (response.status !== 200 || !digests.has(digest)) wrong.push(`${variant.name}: ${response.status}`);
      }
    }
  })();
  return {
    async end(): Promise<readonly string[]> {
      over = true;
      await loop;
      return wrong;
    },
  };
}

async function named(user: User, id: string, digest: string): Promise<string | null> {
  const { variants } = await user.attachment(id);
  return variants.find((variant) => variant.sha256 === digest)?.sha256 ?? null;
}

/** Asks for a path, reads the head of the answer and not more; `rest` reads the body whole. */
export async function slowReader(t: TestContext, base: string, path: string, user: User) {
  const { port } = new URL(base);
  const socket = connect({ port: Number(port), host: '127.0.0.1' });
  t.after(() => void socket.destroy());
  const chunks: Buffer[] = [];
  socket.write(`GET ${path} HTTP/1.1\r\nhost: x\r\nauthorization: ${user.authorization}\r\nconnection: close\r\n\r\n`);
  await new Promise<void>((resolve) => {
    socket.once('data', (chunk) => {
      socket.pause();
      chunks.push(chunk);
      resolve();
    });
  });
  return {
    async rest(): Promise<Buffer> {
      socket.on('data', (chunk) => chunks.push(chunk));
      const ended = new Promise((resolve) => socket.once('close', resolve));
      socket.resume();
      await ended;
      const all = Buffer.concat(chunks);
      return all.subarray(all.indexOf('\r\n\r\n') + 4);
    },
  };
}

/** An animated WebP that no encoder makes small: what is made of it does not fit into the buffers of a connection. */
export async function noise(edge: number, frames: number): Promise<Buffer> {
  const raw = { width: edge, height: edge * frames, channels: 3, pageHeight: edge } as const;
  return await sharp(randomBytes(edge * edge * frames * 3), { limitInputPixels: false, raw })
    .webp({ quality: 60, effort: 0, delay: Array(frames).fill(100) })
    .toBuffer();
}
