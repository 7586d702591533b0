/**
 * The API of the service that tutorials build: Express 5, multer to disk, a row in PostgreSQL, a job in BullMQ, then 202.
 *
 * No accounts, no limits for a user, no digest, no fsync of the file, and a type that is believed. Started with an IPC channel; hears a
 * `Ground`, tells `{ url }`, and ends with its parent.
 */
import { randomUUID } from 'node:crypto';
import type { AddressInfo } from 'node:net';
import { Queue } from 'bullmq';
import express from 'express';
import multer from 'multer';
import { connect } from './bullmq.ts';
import { hearGround, type ImageJob, queueName } from './express-multer-images.ts';
import { insertUpload, openPool } from './uploads.ts';

const ownerId = randomUUID();

const ground = await hearGround();
const pool = openPool(ground.databaseUrl, 10);
const queue = new Queue<ImageJob>(queueName, {
  connection: connect(ground.redisUrl),
  defaultJobOptions: {
    attempts: 3,
    backoff: { type: 'exponential', delay: 1000 },
    removeOnComplete: { count: 1000 },
    removeOnFail: { count: 5000 },
  },
});
queue.on('error', () => {});
const upload = multer({
  storage: multer.diskStorage({ destination: ground.dir }),
  limits: { fileSize: 25 * 1024 ** 2 },
});

const app = express();
app.post('/images', upload.single('file'), async (request, response) => {
  const { file } = request;
  if (file === undefined) {
    response.status(400).json({ error: 'file is missing' });
    return;
  }
  const id = randomUUID();
  const values = [id, ownerId, file.originalname, file.mimetype, file.size, file.path];
  await pool.query({ name: 'insert', text: insertUpload, values });
  await queue.add('resize', { id, path: file.path, contentType: file.mimetype });
  response.status(202).json({ id });
});
app.get('/images/:id', async (request, response) => {
  const { rows } = await pool.query('select id, state, result from uploads where id = $1', [request.params.id]);
  if (rows[0]) response.json(rows[0]);
  else response.status(404).json({ error: 'not found' });
});

const server = app.listen(ground.port, '127.0.0.1', () => {
  process.send?.({ url: `http://127.0.0.1:${(server.address() as AddressInfo).port}` });
});
process.once('disconnect', () => process.exit(0));
