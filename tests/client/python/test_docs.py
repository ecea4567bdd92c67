"""The examples of docs/python.md run, and the package has the project's version."""
import re
import tomllib
import unittest

from server import KEY, SOURCE, Server


class Docs(unittest.TestCase):
    def test_examples(self) -> None:
        examples = re.findall(r"^```python\n(.*?)^```", (SOURCE / "docs/python.md").read_text(), re.M | re.S)
        self.assertEqual(len(examples), 2)
        with Server(files={"keyring": f"camera-7 aes-128-cbc {KEY.hex()}\n"}, keyring="keyring") as server:
            for example in examples:
                self.assertIn("unix:/run/millrace/millraced.sock", example)
                output: list[str] = []
                names = {"print": lambda *words: output.append(" ".join(map(str, words)))}
                exec(example.replace("unix:/run/millrace/millraced.sock", server.address), names)
                self.assertRegex(output[0], "^[0-9a-f]{32} (met|missed|[0-9a-f]{32})$")

    def test_version(self) -> None:
        project = tomllib.loads((SOURCE / "client/python/pyproject.toml").read_text())["project"]
        cmake = re.search(r"project\(millrace VERSION ([0-9.]+)", (SOURCE / "CMakeLists.txt").read_text())
        assert cmake is not None
        self.assertEqual(project["version"], cmake[1])


if __name__ == "__main__":
    unittest.main()
