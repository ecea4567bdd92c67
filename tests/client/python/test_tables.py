"""The tables of the package are what tools/python-tables makes of the C sources, and it tells what
it does not understand."""
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def generate(root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", root / "tools/python-tables"], capture_output=True, text=True
    )


class Tables(unittest.TestCase):
    def test_they_are_those_of_c(self) -> None:
        committed = (ROOT / "client/python/millrace/_tables.py").read_text()
        self.assertEqual(generate(ROOT).stdout, committed, "run tools/python-tables")

    def test_what_is_wrong_is_told(self) -> None:
        for file, text, instead, complaint in (
            ("core/protocol.c", "put_u32(body + 24, opened->queue_packets);", "", "opened: a zero is at 28"),
            ("core/protocol.c", "put_u16(body + 2, fatal ? 1 : 0);", "put_u16(body, 0);", "error: "),
            ("core/protocol.c", "put_u16(body + 4, version_min);", "put_u16(4 + body, 1);", "not understood"),
            ("core/protocol.h", "CLOSED_BYTES      40", "CLOSED_BYTES      41", "the frame at 41"),
            ("core/protocol.h", "PROTOCOL_NOTICE = 16", "PROTOCOL_NOTICE", "a member without a number"),
        ):
            with self.subTest(complaint), tempfile.TemporaryDirectory() as folder:
                copy = Path(folder)
                for name in ("core", "tools"):
                    (copy / name).mkdir()
                for path in [*ROOT.glob("core/*.[ch]"), ROOT / "tools/python-tables"]:
                    shutil.copy(path, copy / path.relative_to(ROOT))
                source = (copy / file).read_text()
                self.assertIn(text, source)
                (copy / file).write_text(source.replace(text, instead, 1))
                told = generate(copy)
                self.assertNotEqual(told.returncode, 0)
                self.assertIn(complaint, told.stderr)


if __name__ == "__main__":
    unittest.main()
