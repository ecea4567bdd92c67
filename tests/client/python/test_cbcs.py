"""What Millrace encrypts as `cbcs` (ISO/IEC 23001-7) is decrypted by an implementation that is not
ours: ffmpeg. A packager of a few lines puts it into a fragmented MP4, each protected range a message.
Skipped (77) without ffmpeg."""
import shutil
import struct
import subprocess
import sys
import unittest
from collections.abc import Iterator
from dataclasses import replace

import millrace
from millrace import Iv, Padding
from server import KEY, MESSAGES, MS, Server, draw

VIDEO, AUDIO = 1, 2  # tracks, as ffmpeg numbers them
SLICE_CLEAR_BYTES = 32  # of each slice, with its length: its header is in them
WHOLE = replace(MESSAGES, interval_ns=MS, iv=Iv.CONSTANT, padding=Padding.CLEAR, packet_bytes=336)
PATTERN = replace(WHOLE, crypt_blocks=1, skip_blocks=9)  # 336: its cycles do not end where packets do
IV = draw.randbytes(16)
NEW_KEY = draw.randbytes(16)
MAKE_CLEAR = (
    "ffmpeg -nostdin -v error -f lavfi -i testsrc2=size=320x180:rate=25:duration=2 -f lavfi -i"
    " sine=duration=2 -c:v libx264 -g 25 -sc_threshold 0 -x264-params slices=3 -c:a aac"
    " -movflags frag_keyframe+empty_moov+default_base_moof -f mp4 -"
)
Streams = dict[int, millrace.Stream]  # by track


def boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        yield kind, data[at + 8 : at + size]
        at += size


def box(kind: bytes, *parts: bytes) -> bytes:
    return struct.pack(">I4s", 8 + sum(map(len, parts)), kind) + b"".join(parts)


def protect_header(kind: bytes, body: bytes) -> bytes:
    """The box; in moov each sample entry says that its track is protected, and how."""
    if kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        return box(kind, *(protect_header(*child) for child in boxes(body)))
    if kind == b"stsd":
        return box(kind, body[:8], *(protect_entry(*entry) for entry in boxes(body[8:])))
    return box(kind, body)


def protect_entry(kind: bytes, body: bytes) -> bytes:
    encrypted, pattern = {b"avc1": (b"encv", 0x19), b"mp4a": (b"enca", 0)}[kind]
    tenc = struct.pack(">IBBBB16sB16s", 1 << 24, 0, pattern, 1, 0, bytes(16), 16, IV)
    scheme = box(b"schm", struct.pack(">I4sI", 0, b"cbcs", 0x10000))
    sinf = box(b"sinf", box(b"frma", kind), scheme, box(b"schi", box(b"tenc", tenc)))
    return box(encrypted, body, sinf)


def sample_places(traf: bytes) -> Iterator[tuple[int, int]]:
    """Where each sample begins, counted from its moof, and its bytes."""
    for kind, trun in boxes(traf):
        if kind == b"trun":
            flags, count, at = struct.unpack_from(">IIi", trun)
            assert flags & 0x201 == 0x201, "runs without offset or sizes are not for this packager"
            first = 12 + 4 * bool(flags & 0x4)
            step = 4 * (flags & 0xF00).bit_count()
            for entry in range(first, first + count * step, step):
                (size,) = struct.unpack_from(">I", trun, entry + 4 * bool(flags & 0x100))
                yield at, size
                at += size


def slice_ranges(sample: bytes) -> list[tuple[int, int]]:
    """Clear bytes and protected ones, in turn. Of NAL units only slices are protected."""
    ranges, clear, at = list[tuple[int, int]](), 0, 0
    while at < len(sample):
        unit = 4 + int.from_bytes(sample[at : at + 4], "big")
        protected = max(unit - SLICE_CLEAR_BYTES, 0) if sample[at + 4] & 31 in (1, 5) else 0
        clear += unit - protected
        if protected:
            ranges.append((clear, protected))
            clear = 0
        at += unit
    return ranges + ([(clear, 0)] if clear else [])


def protect_samples(traf: bytes, media: bytearray, media_at: int, streams: Streams) -> bytes:
    """Encrypts them where they are. Returns the box that says what of each was encrypted: senc, all
    that ffmpeg reads of a pipe; none for samples that are encrypted whole, as those of audio are."""
    (track,) = (struct.unpack_from(">I", body, 4)[0] for kind, body in boxes(traf) if kind == b"tfhd")
    entries = []
    for start, size in sample_places(traf):
        at = start - media_at
        sample = bytes(media[at : at + size])
        assert len(sample) == size
        ranges = slice_ranges(sample) if track == VIDEO else [(0, size)]
        for clear, protected in ranges:
            at += clear
            if protected:
                message = bytes(media[at : at + protected])
                media[at : at + protected] = streams[track].encrypt_message(message).ciphertext
                at += protected
        entries.append(struct.pack(">H", len(ranges)) + b"".join(struct.pack(">HI", *of) for of in ranges))
    return box(b"senc", struct.pack(">II", 2, len(entries)), *entries) if track == VIDEO else b""


def move_runs(traf: bytes, by: int) -> bytes:
    moved = []
    for kind, body in boxes(traf):
        if kind == b"trun":
            (offset,) = struct.unpack_from(">i", body, 8)
            body = body[:8] + struct.pack(">i", offset + by) + body[12:]
        moved.append(box(kind, body))
    return b"".join(moved)


def protect_fragment(moof: bytes, mdat: bytes, streams: Streams) -> bytes:
    media, media_at = bytearray(mdat), 8 + len(moof) + 8
    parts = list(boxes(moof))
    sencs = [
        protect_samples(part, media, media_at, streams) if kind == b"traf" else b"" for kind, part in parts
    ]
    longer = sum(map(len, sencs))
    moved = (
        box(kind, move_runs(part, longer) if kind == b"traf" else part, senc)
        for (kind, part), senc in zip(parts, sencs)
    )
    return box(b"moof", *moved) + box(b"mdat", media)


class File:
    """A fragmented MP4 in its parts."""

    def __init__(self, data: bytes) -> None:
        parts = [part for part in boxes(data) if part[0] != b"mfra"]
        at = next(number for number, (kind, _) in enumerate(parts) if kind == b"moof")
        self.header = parts[:at]
        self.fragments = [(moof, mdat) for (_, moof), (_, mdat) in zip(parts[at::2], parts[at + 1 :: 2])]

    def clear(self, of: slice) -> bytes:
        media = (box(b"moof", moof) + box(b"mdat", mdat) for moof, mdat in self.fragments[of])
        return b"".join([box(*part) for part in self.header] + list(media))

    def protected(self, of: slice, streams: Streams) -> bytes:
        media = [protect_fragment(*fragment, streams) for fragment in self.fragments[of]]
        return b"".join([protect_header(*part) for part in self.header] + media)


class Cbcs(unittest.TestCase):
    client: millrace.Client
    file: File

    @classmethod
    def setUpClass(cls) -> None:
        server = cls.enterClassContext(Server())
        cls.client = cls.enterClassContext(millrace.connect(server.address, timeout=120))
        cls.file = File(subprocess.run(MAKE_CLEAR.split(), stdout=subprocess.PIPE, check=True).stdout)

    def streams(self, video: millrace.Contract) -> Streams:
        contracts = {VIDEO: video, AUDIO: WHOLE}
        return {
            track: self.enterContext(self.client.open(contract, KEY, IV))
            for track, contract in contracts.items()
        }

    def played(self, data: bytes, key: bytes | None = None, decode: bool = False) -> list[list[str]]:
        """Hashes of each track's packets, or frames, as ffmpeg has them after decryption. It reads a
        pipe: where it can seek, ffmpeg 5.1 takes one fragment's senc for that of all."""
        command = ["ffmpeg", "-v", "fatal", *(["-decryption_key", key.hex()] if key else []), "-i", "-"]
        command += ["-map", "0", *([] if decode else ["-c", "copy"]), "-f", "framemd5", "-"]
        lines = subprocess.run(command, input=data, stdout=subprocess.PIPE).stdout.decode().splitlines()
        return [[line for line in lines if line.startswith(f"{track - 1},")] for track in (VIDEO, AUDIO)]

    def check(self, data: bytes, of: slice, key: bytes, wrong_key: bytes) -> None:
        clear = self.file.clear(of)
        packets = self.played(clear)
        self.assertEqual(self.played(data, key), packets)
        self.assertEqual(self.played(data, key, decode=True), self.played(clear, decode=True))
        for wrong, right in zip(self.played(data, wrong_key), packets, strict=True):
            self.assertEqual(len(wrong), len(right))
            self.assertGreaterEqual(len(right), 20)
            self.assertNotEqual(wrong, right)

    def test_one_key(self) -> None:
        everything = slice(None)
        data = self.file.protected(everything, self.streams(PATTERN))
        self.check(data, everything, KEY, NEW_KEY)

    def test_another_pattern(self) -> None:
        """The video is not played where its pattern is not the one that the file tells."""
        everything = slice(None)
        streams = self.streams(replace(PATTERN, crypt_blocks=2, skip_blocks=8))
        video, audio = self.played(self.file.protected(everything, streams), KEY)
        clear_video, clear_audio = self.played(self.file.clear(everything))
        self.assertEqual(len(video), len(clear_video))
        self.assertNotEqual(video, clear_video)
        self.assertEqual(audio, clear_audio)

    def test_rekey(self) -> None:
        """The first fragment under one key, the second one under another."""
        self.assertEqual(len(self.file.fragments), 2)
        first, second = slice(0, 1), slice(1, 2)
        streams = self.streams(PATTERN)
        data = self.file.protected(first, streams)
        for stream in streams.values():
            stream.rekey(NEW_KEY)
        self.check(data, first, KEY, NEW_KEY)
        self.check(self.file.protected(second, streams), second, NEW_KEY, KEY)


if __name__ == "__main__":
    if shutil.which("ffmpeg") is None:
        print("skipped: no ffmpeg")
        sys.exit(77)
    unittest.main()
