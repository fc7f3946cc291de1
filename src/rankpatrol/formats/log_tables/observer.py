"""Lines that are the observer's, not the job's: a clock, the silence, who lives, GPU readings, limits."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

_POWER = r"(?:.{0,20}?power\w*[ =:]+(?P<power_w>[\d.]+))?(?:.{0,40}?before:.{0,40}?power\w*[ =:]+(?P<before_w>[\d.]+))?"

ROWS = (
    *rows(
        Kind.NOW,
        ("now", "now= now_= now:", r"\bnow ?[=:] ?(?P<now>[\d:./T ,-]+\d)"),
        also=True,
    ),
    *rows(
        Kind.SILENCE,
        (
            "",
            "silence output without no_ nothing unchanged last_line since frozen still stuck",
            (
                r"(?:(?<!\d)(?P<n>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>s|sec|seconds?|m|min|minutes?|h"
                r"|hours?)(?P<n2>\d+)? ?s?) (?:of silence|without (?:a |any )?(?:new )?(?:step|output|line|log"
                r"|progress|iteration)|no output|with no)"
            ),
        ),
        (
            "",
            "silent output progress step line silence unchanged",
            (
                r"(?:silent|no (?:new )?(?:output|progress|steps?|lines?|log)(?: lines?)?|silence|unchanged"
                r"|not (?:moved|grown|changed))(?: since \S+)?(?:,| \(| for| of| in| since"
                r"|:)* ?(?:the last )?(?P<n>\d+(?:\.\d+)?) ?(?P<unit>s|sec|seconds?|m|min|minutes?|h"
                r"|hours?)(?P<n2>\d+)?\b(?! ?(?:before|earlier|usual))"
            ),
        ),
        also=True,
    ),
    # Any other length of time in an observer's line, unless it is a limit, a usual value, or the span of a rate.
    *rows(
        Kind.SILENCE,
        (
            "any",
            "min h s",
            (
                r"^\s*(?:--|##?)\s(?:(?!earlier|previous|usual|took|takes|time-?out|limit|every|\beta\b|\bin \d"
                r"|since start|per step|interval).)*?"
                r"(?<![\w.:])(?P<n>\d+(?:\.\d+)?) ?(?P<unit>min|minutes?|m|h|hours?)(?P<n2>\d\d)?\b(?! since start)"
            ),
        ),
        also=True,
    ),
    *rows(
        Kind.NOW,
        (
            "last",
            "last_write last_line last_output mtime",
            r"(?:last (?:write|line|output|log line)|mtime)[ :=at]*(?P<last>\d[\d:./T -]{6,}\d)",
        ),
        also=True,
    ),
    *rows(
        Kind.ALIVE,
        (
            "",
            "alive still_running running",
            (
                r"(?:ranks? (?P<ranks>[\d, -]+)|all (?:(?:\d+|two|four|eight|sixteen|of its|its) )?(?:ranks?|processes|workers)|processes?"
                r"|pids?).{0,20}?(?:alive|still run(?:ning|s)?|are running)"
            ),
        ),
        also=True,
    ),
    *rows(
        Kind.GPU,
        (
            "reading",
            "util",
            r"\bgpu\b.{0,20}?\brank[ =](?P<rank>\d+).{0,40}?util[ =:]+(?P<util>\d+)" + _POWER,
        ),
        (
            "reading",
            "util",
            r"\bgpu ?[=:]? ?(?P<gpu>\d+)\b.{0,20}?util\w*[ =:]+(?P<util>\d+)" + _POWER,
        ),
        ("listed", "nvidia-smi gpu", r"(?<![\d:])(?P<gpu>\d{1,2}): ?(?:util )?(?P<util>\d{1,3}) ?%(?:,? ?(?P<power_w>\d+) ?W)?"),
        ("all", "gpu util", r"(?:gpus?|util\w*)\b[^\d]{0,40}(?P<util>\d{1,3})(?:-\d+)? ?%(?:.{0,40}?(?P<power_w>\d+) ?W\b)?"),
        ("all", "gpu", r"gpus? (?:are |is )?(?P<state>busy|idle|active)(?:.{0,40}?(?P<power_w>\d+) ?W\b)?"),
        also=True,
    ),
    *rows(
        Kind.OBSERVED,
        ("steps_done", "steps:", r"(?<!first )steps?: ?(?P<steps>\d+)\b(?! ?(?:s|ms|min|m|h)\b)"),
        ("since_start", "since_start", r"time since start: ?(?P<seconds>\d+) ?s"),
        (
            "earlier",
            "previous earlier usual before",
            (
                r"^\s*(?:--|##?)\s.*?(?:previous|earlier|usual\w*|before|last runs?|past)\b.{0,60}?(?:phases?|times?|gaps?|evals?|saves?"
                r"|compil\w+|loads?|starts?|took|takes|(?:first|1st) (?:iteration|step"
                r"|batch))\b[^\d]{0,20}(?P<seconds>\d+(?:\.\d+)?) ?(?P<unit>s|min|m|h)?"
            ),
        ),
        (
            "earlier",
            "save-checkpoint evaluate load-checkpoint",
            r"^\s*(?:save-checkpoint|evaluate|load-checkpoint)[\w-]* \.{2,}: \([\d.]+, (?P<ms>\d+\.\d+)\)",
        ),
        (
            "file_grows",
            "size grow bytes",
            r"(?:file|log|shard|checkpoint|tmp|\.pt|\.distcp|cache).{0,60}?(?:grow(?:s|ing|n)|-> ?\d|increas\w+)",
        ),
        (
            "others_wait",
            "rank",
            (
                r"^\s*(?:--|##?)\s.*?\branks? (?P<ranks>\d[\d, -]*?)(?: (?:are|is|all|still|wait\w*|sit|block\w*"
                r"|stuck))* (?:in|at|inside|on) (?:a |the |an )?"
                r"(?:\w+ )?(?:barrier|all_?reduce|broadcast|collective|all_?gather|reduce_scatter|main_process_first)"
            ),
        ),
        (
            "others_wait",
            "rank",
            (
                r"^\s*(?:--|##?)\s.*?\branks? (?P<ranks>\d[\d, -]*?)(?: \([\w, .-]+\))?: .{0,80}?\b(?:waiting (?:for|at|in)\b"
                r"|barrier|all_?reduce|broadcast|all_?gather|reduce_scatter|main_process_first)"
            ),
        ),
        ("goes_on", "->", r"(?:step|iter\w*|event|counter|epoch)s?\b[^>]{0,40}?(?P<before>\d+) ?-> ?(?P<after>\d+)"),
        (
            "cpu_pressure",
            "pressure/cpu avg10",
            r"(?:(?<![\w.-])(?P<host>[\w.-]{1,80}) )?/proc/pressure/cpu:? .{0,40}?some avg10=(?P<share>\d+(?:\.\d+)?)",
        ),
        (
            "load",
            "load_average",
            (
                r"(?:(?<![\w.-])(?P<host>[\w.-]{1,80}) (?:uptime|w"
                r"|top):? )?(?:.{0,80}?)load average: (?P<load>\d+(?:\.\d+)?).{0,40}?\(?(?P<cpus>\d+) (?:cpus|cores|logical)"
            ),
        ),
        (
            "port_rate",
            "rate: speed:",
            (
                r"(?:(?<![\w.-])(?P<host>[\w.-]{1,80}) )?(?:ibstat|ibstatus"
                r"|ethtool)\b ?'?(?P<device>[\w.]{1,40})?.{0,120}?(?:[Rr]ate|Speed): ?(?P<rate>\d+)"
            ),
        ),
        ("downgraded", "downgraded", r"LnkSta:?.*\(downgraded\)"),
        ("loader_lock", "futex lock", r"(?:loader|worker)s?\b.{0,60}(?:futex|lock)"),
        ("log_size", "log_size size log_file bytes", r"log.{0,20}?size[ =:]+(?P<size>\d+)|(?<!\d)(?P<size2>\d{1,15}) bytes"),
        ("buffered", "buffer", r"(?:block|fully?|stdout|output|log).{0,12}buffer(?:ed|ing)?|not flushed"),
        ("cpu_works", "cpu", r"cpu.{0,40}?(?P<cpu>\d{2,4}(?:\.\d+)?) ?%"),
        (
            "kernel_state",
            "state wchan",
            (
                r"\b(?:in |state[ =:]+)D\b(?: state)?|D \(disk sleep\)|wchan[ =:]+(?P<wchan>\w*(?:nfs|rpc|lustre|ll_"
                r"|gpfs|ceph|io_schedule|wait_on_page)\w*)"
            ),
        ),
        ("pcap", "ping", r"ping.{0,60}(?:unreachable|100% packet loss|timed out)"),
        ("device_map", "->", r"\brank (?P<rank>\d+) ?(?:->|=|:) ?(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"),
        also=True,
    ),
    *rows(
        Kind.TIMES,
        (
            "baseline",
            "baseline usual normal",
            r"(?:baseline|usual|normal(?:ly)?)\b.{0,40}?(?<![A-Za-z\d.])(?P<ms>\d+(?:\.\d+)?) ?(?P<unit>ms|s)?\b(?! ?(?:min|%|W))",
        ),
        (
            "meter",
            "data",
            r"\bTime:? +\d+\.\d+ \( *(?P<time_usual>\d+\.\d+)\).{0,40}\bData:? +\d+\.\d+ \( *(?P<data_usual>\d+\.\d+)\)",
        ),
        (
            "meter",
            "data_time",
            (
                r"\btime: (?P<time_usual>\d+\.\d+).{0,60}\bdata(?:_time)?: (?P<data_usual>\d+\.\d+)"
                r"|\bdata(?:_time)?: (?P<data_usual2>\d+\.\d+).{0,60}\btime: (?P<time_usual2>\d+\.\d+)"
            ),
        ),
        # timm: Time: 0.412s, 2485.4/s  (0.420s, 2438.0/s)  LR: 8.000e-04  Data: 0.014 (0.018)
        (
            "meter",
            "data",
            (
                r"\bTime:? +(?P<time_now>\d+\.\d+)s?\b[^()]{0,40}\( *(?P<time_usual>\d+\.\d+)s?\b[^()]{0,40}\).{0,60}?"
                r"\bData:? +(?P<data_now>\d+\.\d+)s? \( *(?P<data_usual>\d+\.\d+)"
            ),
        ),
        (
            "by_rank",
            "ms sec time s/",
            (
                r"(?<![\w/-])(?P<name>[A-Za-z][\w/-]{0,40})(?: ?[\[(](?:ms|s"
                r"|sec)[\])])?(?: per (?:step|iter\w*|rank))?(?: by rank)? ?[:=] ?[\[{(]?"
                r"(?P<pairs>(?:[\[(]?(?:rank ?|r)?\d{1,5}\]? ?[=:] ?\d+(?:\.\d+)? ?(?:ms|s)?[ ,;]+){2,}"
                r"(?:rank ?|r)?\d{1,5} ?[=:] ?\d+(?:\.\d+)?)"
            ),
        ),
        # A straggler report: one line a rank, `Rank 5: 871.12ms`.
        ("listed", "ms sec", r"^(?P<value>\d+(?:\.\d+)?) ?(?P<unit>ms|s|sec)$"),
        # nvidia-resiliency-ext: `Rank=5 Node=a1 Score=0.52`, 1.0 being the fastest.
        ("score", "score=", r"\bRank=(?P<rank>\d+) Node=\S+ Score=(?P<score>0?\.\d+|1\.0+)"),
        (
            "before_after",
            "after",
            (
                r"\bbefore\b[^|;]{0,80}?(?<![\d:.])(?P<before>\d+(?:\.\d+)?) ?s\b.{0,80}?\b(?:after"
                r"|since|now)\b[^|;]{0,80}?(?<![\d:.])(?P<after>\d+(?:\.\d+)?) ?s\b"
            ),
        ),
        (
            "rank",
            "ms= s= time=",
            r"\brank[ =:](?P<rank>\d+).{0,40}?\w+_(?:ms|s|time)=[\d.]+|(?<!\w)\w{1,40}_(?:ms|s)=[\d.]+.{0,20}\b\w{1,40}_(?:ms|s)=[\d.]+",
        ),
        also=True,
    ),
)
