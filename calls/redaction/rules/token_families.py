"""The tokens of known services: their prefixes, the characters that follow, and how many.

The forms are documented by providers and listed in the rules of gitleaks and detect-secrets; the table was written for Playhead.
Tokens without a prefix are found by the name of the member or variable that contains them.
"""

from typing import Final

_WORD = "A-Za-z0-9_\\-"
_ALNUM = "A-Za-z0-9"
_DOTTED = "A-Za-z0-9_.\\-"
_BASE = "A-Za-z0-9+/=_\\-"
_BASE64 = "A-Za-z0-9+/="
_HEX = "a-f0-9"

PREFIXES: Final[tuple[tuple[str, str, int], ...]] = (
    # Model providers
    ("sk-", _WORD, 20),  # OpenAI, Anthropic, OpenRouter, DeepSeek, LiteLLM, Langfuse
    ("ek_ sess- fw_", _ALNUM, 20),
    ("gsk_ pplx- xai- r8_ hf_ api_org_ jina_ csk- rpa_", _ALNUM, 28),
    ("pcsk_ tgp_v1_ lsv2_pt_ lsv2_sk_ nvapi- llx- pylf_v1_ wandb_v1_", _WORD, 30),
    ("AIza", _WORD, 30),
    ("AQ.Ab", _WORD, 30),  # Google's authorization keys, since 2026
    ("ya29. GOCSPX- 1//0", _DOTTED, 20),
    ("pa-", _WORD, 40),
    ("openai-insecure-api-key.", _DOTTED, 8),
    ("KGAT_", _HEX, 32),
    # Tools that agents use
    ("sk_", _HEX, 40),  # ElevenLabs
    ("sk_car_ sk_e2b_ e2b_ apify_api_ rnd_ dtn_ ctx7sk-", _WORD, 24),
    ("bb_live_ bb_test_", _WORD, 24),  # Browserbase
    ("re_", "A-Za-z0-9_", 24),  # Resend
    ("tvly-", "A-Za-z0-9\\-", 24),
    ("fc-", _HEX, 32),
    ("ph_", _WORD, 40),  # Playhead's own (`store.access.api_tokens`)
    # Clouds
    ("ABSK bedrock-api-key-", _BASE64, 60),
    ("IQoJb3JpZ2luX2Vj FwoGZXIvYXdz FQoGZXIvYXdz", _BASE64, 60),  # AWS sessions, also under the name `Token`
    ("LTAI AKID", _ALNUM, 20),  # Alibaba, Tencent
    ("dop_v1_ doo_v1_ dor_v1_ ntn_ secret_", _ALNUM, 40),
    ("cfut_ cfat_ cfk_", _ALNUM, 32),
    ("v1.0-", "a-f0-9\\-", 100),  # Cloudflare, origin CA
    ("fo1_ fm1a_ fm1r_ fm2_", _BASE, 40),
    ("tskey-", _WORD, 18),
    ("nfp_ vcp_ vci_ vca_ vcr_ vck_ pnu_ sgp_ sgamp_user_ rdme_ waka_", "A-Za-z0-9_.\\-", 24),
    ("HRKU- pul- ico- tk-us- s-s4t2ud- s-s4t2af-", _WORD, 22),
    ("t1.9 AQVN YCAJ YCM", "A-Za-z0-9_.=\\-", 36),
    ("ops_eyJ", _BASE64, 100),
    ("A3-", "A-Z0-9\\-", 34),
    # Code and packages
    ("ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 30),
    ("github_pat_", "A-Za-z0-9_", 20),
    ("glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat- glffct- GR1348941", _DOTTED, 16),
    ("_gitlab_session=", _HEX, 32),
    ("npm_ rubygems_ dckr_pat_ dckr_oat_ sntryu_ lin_api_ lin_oauth_ figd_ sbp_", "A-Za-z0-9_=\\-", 24),
    ("sntrys_", "A-Za-z0-9_+/=\\-", 40),
    ("sb_secret_", _WORD, 24),
    ("pypi-", _WORD, 30),
    ("CLOJARS_", "a-f0-9", 50),
    ("AKCp cmVmd", _ALNUM, 60),
    ("squ_ sqp_ sqa_ bkua_", _HEX, 40),
    ("CCIPAT_ CCIPRJ_", "A-Za-z0-9_", 40),
    ("ATATT3 ATCTT3 ATBB ATTA", "A-Za-z0-9_=\\-", 30),
    ("sl.B sl.u", "A-Za-z0-9_=\\-", 50),
    ("PMAK-", "a-f0-9\\-", 40),
    ("API-", "A-Z0-9", 30),
    ("AGE-SECRET-KEY-1", "A-Z0-9", 50),
    # Databases
    ("napi_", _ALNUM, 30),  # Neon
    ("pscale_tkn_ pscale_oauth_ pscale_pw_", "A-Za-z0-9_=.\\-", 40),
    ("AVNS_ mdb_sa_sk_", _WORD, 20),
    ("dapi dose dkea", "a-f0-9\\-", 34),
    # Messages and mail
    ("xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxo- xoxp- xoxr- xoxs- xapp-", "A-Za-z0-9.%\\-", 10),
    ("SG.", _DOTTED, 32),
    ("key- pubkey-", "a-f0-9\\-", 36),
    ("xkeysib- xsmtpsib-", "A-Za-z0-9\\-", 40),
    ("mlsn.", _ALNUM, 40),
    ("AAAAAAAAAAAAAAAAAAAAA", "A-Za-z0-9%", 80),  # Twitter
    # Payment and shops
    ("sk_live_ sk_test_ sk_prod_ sk_org_ rk_live_ rk_test_ rk_prod_", _ALNUM, 10),
    ("whsec_", _BASE, 16),
    ("shpat_ shpss_ shpca_ shppa_", "A-Fa-f0-9\\-", 32),
    ("sq0atp- sq0csp- sq0idp-", _WORD, 22),
    ("FLWSECK_TEST- FLWSECK-", "A-Za-z0-9\\-", 24),
    ("shippo_live_ shippo_test_ duffel_live_ duffel_test_", "A-Za-z0-9_=\\-", 40),
    ("EZAK EZTK", _ALNUM, 50),
    ("access-sandbox- access-development- access-production-", "a-f0-9\\-", 40),
    # Operations
    ("hvs. hvb. dp.pt. dp.st. dp.sa. dp.ct. dp.scim. dp.audit.", _DOTTED, 24),
    ("dt0c01. dt0s01.", "A-Za-z0-9.", 60),
    ("glsa_", "A-Za-z0-9_", 36),
    ("glc_", _BASE, 32),
    ("NRAK- NRJS- NRII- NRIQ-", "A-Za-z0-9_\\-", 20),
    ("phx_", _ALNUM, 30),
    ("hcaik_ hcxik_", _ALNUM, 40),
    ("signkey-prod- signkey-test-", _HEX, 40),
    ("tr_prod_ tr_dev_ tr_pat_", _ALNUM, 24),
    # Teams
    ("pat-na1- pat-na2- pat-eu1- pat-ap1-", "A-Za-z0-9\\-", 36),
    ("CFPAT-", _WORD, 40),
    ("tfp_ fio-u- p8e-", "A-Za-z0-9_.=\\-", 32),
    ("sm_aat_ sm_pat_ sm_sat_", _ALNUM, 20),
    ("dnkey-", "A-Za-z0-9_=\\-", 60),
    ("sk.eyJ pk.eyJ", _DOTTED, 60),  # Mapbox
)
"""Prefixes, the characters of the rest, and the minimum length of the whole token."""

EXACT: Final[tuple[tuple[str, str], ...]] = (
    ("oy2", "[a-z0-9]{43}"),  # NuGet
    ("cio", "[A-Za-z0-9]{32}"),  # crates.io
    ("4b1d", "[A-Za-z0-9]{38}"),  # ClickHouse Cloud
    ("SK", "[a-f0-9]{32}"),  # Twilio
    ("EAA", "[A-Za-z0-9_-]{57,400}"),  # Facebook, Square
    ("BSA", "[A-Za-z0-9_-]{26,30}"),  # Brave
)
"""Prefixes so short that base64 contains them by chance, and the expression that must follow up to the end of the word."""
