/** What API and worker of the tutorial's service say to each other, by BullMQ, and what each is told when it starts. */

export interface Ground {
  /** With the table `uploads`. */
  readonly databaseUrl: string;
  readonly redisUrl: string;
  /** For originals and what is made of them. */
  readonly dir: string;
  /** Of the API; 0 takes a free one. */
  readonly port: number;
  /** Of the worker. `ours`: those of our recipe. `plain`: qualities only, as tutorials write it. */
  readonly encoders: 'ours' | 'plain';
}

/** What a job carries. */
export interface ImageJob {
  readonly id: string;
  readonly path: string;
  readonly contentType: string;
}

export const queueName = 'images';

/** What the parent sends first. */
export function hearGround(): Promise<Ground> {
  return new Promise((resolve) => process.once('message', (word) => resolve(word as Ground)));
}
