// A real OpenID Connect provider for the tests: any name signs in with any password; the groups are in the name.
import { Provider } from 'oidc-provider';

const [port, redirectUri] = process.argv.slice(2);
const issuer = `http://localhost:${port}`;
const configuration = {
  clients: [{ client_id: 'stentor', client_secret: 'client-secret-5b1d', redirect_uris: [redirectUri] }],
  claims: { openid: ['sub'], email: ['email', 'email_verified'], groups: ['groups'] },
  scopes: ['openid', 'email', 'groups'],
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true } },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups: id.split('-').slice(1) }),
  }),
};
const provider = new Provider(issuer, configuration);
provider.listen(Number(port), 'localhost', () => console.log('ready'));
