/**
 * The OpenAPI document, made from the schemas of the routes, and the reference at `/docs`. Nothing is loaded from
 * anywhere else: the script comes from the installed package, fonts are the system's.
 */
import swagger from '@fastify/swagger';
import reference from '@scalar/fastify-api-reference';
import type { App } from './app.ts';

const description = `Upload a picture, get back the same bytes and three variants, made by a pipeline that survives crashes.

Errors are \`application/problem+json\` (RFC 9457) with a stable \`code\`. Any route may also answer 500 \`internal\`,
and 400 \`malformed_request\`, 408 \`request_timeout\` or 431 \`headers_too_large\` to what is not a whole request. A 503
has \`Retry-After\`: a dependency is down, or the service is full. Lists are newest first, a page at a time.`;

/** Registers the collector of schemas. Before the routes. */
export async function installContract(app: App, version: string): Promise<void> {
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: { title: 'Skrepka', version, description, license: { name: 'MIT', identifier: 'MIT' } },
      servers: [{ url: '/' }],
      components: {
        securitySchemes: {
          bearer: { type: 'http', scheme: 'bearer', description: 'The token that registering or logging in answers.' },
          metrics: { type: 'http', scheme: 'bearer', description: '`METRICS_TOKEN`; not needed on loopback.' },
        },
      },
      tags: [
        { name: 'attachments', description: 'Uploads and what became of them' },
        { name: 'content', description: 'Originals and variants' },
        { name: 'people', description: 'Accounts and sessions' },
        { name: 'messages', description: 'Chats and messages' },
        { name: 'operators', description: 'For accounts with the role `admin`' },
        { name: 'system', description: 'Limits, health, metrics' },
      ],
    },
    // Shared schemas keep their own names in the document.
    refResolver: { buildLocalReference: (json, _base, _fragment, index) => String(json.$id ?? `schema-${index}`) },
  });
}

/** Registers `/docs`, `/docs/openapi.json` and `/docs/openapi.yaml`. After the routes. */
export async function installReference(app: App): Promise<void> {
  await app.register(async (scope) => {
    scope.addHook('onRoute', (route) => {
      route.config = { ...route.config, access: 'public' };
    });
    scope.addHook('onRoute', (route) => {
      route.config = { ...route.config, access: 'public' };
    });
    scope.addHook('onRequest', async (_request, reply) => {
      // The reference is one script that styles itself; it may talk to this server alone.
      reply.header(
        'content-security-policy',
        "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; " +
          "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; frame-ancestors 'none'",
      );
    });
    await scope.register(reference, {
      routePrefix: '/docs',
      configuration: {
        pageTitle: 'Skrepka API',
        withDefaultFonts: false,
        telemetry: false,
        hideClientButton: true,
      },
    });
  });
}

/** The document as `contracts/openapi.json` holds it. The app must be ready. */
export function openApiDocument(app: App): Record<string, unknown> {
  return app.swagger() as unknown as Record<string, unknown>;
}
