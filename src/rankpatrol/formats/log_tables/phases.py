"""What a job is doing, in the words of the frameworks; what proves life but no progress; and how a run says that it is done."""

from rankpatrol.core.testimony import Kind
from rankpatrol.formats.log_tables.row import rows

ROWS = (
    *rows(
        Kind.FINISHED,
        (
            "",
            "done training end_time train_runtime finished completed done exiting stopped",
            (
                r"\b[Dd]one\b.{0,20}\b(?P<count>\d+)/(?P=count)\b|[Tt]raining (?:is |was |has )?(?:completed?|finished"
                r"|done|ended|over)\b|End time of running main"
                r"|'?train_runtime'?\s*[=:]|Finished training|`?Trainer\.fit`? stopped|exiting program (?:after"
                r"|at) iteration|[Aa]ll (?:epochs|steps) (?:done|completed|finished)"
                r"|[Tt]rain(?:ing)? (?:run )?end(?:ed)?\b|saved final (?:model|checkpoint)|last_model_checkpoint"
                r"|[Ff]inal (?:model|checkpoint) (?:was )?saved"
            ),
        ),
    ),
    *rows(
        Kind.DATA_ENDED,
        ("iteration", "stopiteration", r"\bStopIteration\b"),
        (
            "epoch",
            "epoch",
            (
                r"epoch:? \[?\d+\]?(?:/\d+)?:? (?:is )?(?:done|finished|completed?|ended"
                r"|over)\b(?:.{0,10}?(?P<batches>\d+) (?:batches|steps|iterations))?"
            ),
        ),
        ("epoch", "end_of", r"end of (?:the )?(?:epoch|data(?:set|loader)?|training data|iterator)"),
        (
            "data",
            "exhausted no_more ran_out out_of_data",
            (
                r"(?:dataloader|dataset|iterator|data|loader|stream).{0,20}(?:is )?exhausted|no more (?:batches|data"
                r"|samples)|r[au]n out of (?:data|batches|samples)|out of (?:data|batches)\b"
            ),
        ),
        (
            "length",
            "len( batches length samples",
            (
                r"(?:len\((?:train_)?(?:data)?loader\)|num(?:ber of)?[ _]batches|(?:train|data)loader length"
                r"|batches per epoch)['\"]?\s*[=:]\s*(?P<batches>\d+)"
            ),
        ),
        also=True,
    ),
    *rows(
        Kind.PULSE,
        (
            "heartbeat",
            "hb heartbeat keepalive keep-alive alive waiting",
            r"\bhb\b|heart ?beat\b(?! monitor)|keep-?alive|still (?:alive|waiting|running)",
        ),
        ("metrics", "get_/ post_/ http/1 health /metrics", r"\"(?:GET|POST|HEAD) /\S* HTTP/|GET /(?:metrics|health)"),
        ("sampler", "gpu_mem nvidia-smi prometheus system_metrics wandb:_", r"(?:system|gpu) (?:metrics|stats|monitor)|prometheus"),
    ),
    *rows(
        Kind.PHASE,
        ("waiting", "waiting_for", r"[Ww]aiting for (?:the )?(?:local )?(?:main process|rank ?0|master|main rank)"),
        (
            "loaded",
            "loaded resum",
            r"(?:successfully )?loaded .{0,60}(?:check-?point|ckpt|weights|model|state)|resum(?:ed|ing) (?:from|training)",
        ),
        (
            "loading",
            "load restor",
            (
                r"\b(?:load(?:ing)?|restor(?:e|ing)|materializ\w+|shard(?:ing)?)\b.{0,40}(?:check-?point|ckpt|weights"
                r"|model|safetensors|shards|state|optimizer|pipeline|tensors)"
            ),
        ),
        ("loader_wait", "waiting", r"[Ww]aiting (?:for|on) (?:the )?(?:next )?(?:batch|data ?loader|loader|data)\b"),
        ("compiled", "compil", r"done with compil\w+|compil\w+ (?:is )?(?:done|finished|complete)|Compilation time: \d|finished compil\w+"),
        (
            "prepared",
            "build creating dataset",
            r"elas?psed time to build|finished creating indexed dataset|done with dataset|dataset (?:is )?ready",
        ),
        ("downloaded", "download", r"[Dd]ownload(?:ing)? (?:is )?(?:complete|done|finished)|\bdownloaded\b"),
        (
            "evaluated",
            "eval valid",
            r"(?:evaluation|validation) (?:is )?(?:done|finished|complete)|finished (?:evaluation|validation)|validation loss at iteration",
        ),
        ("ending", "destroy", r"destroy(?:ing)?[ _](?:the )?process[ _]?group"),
        (
            "saving",
            "sav ckpt checkpoint upload writing",
            (
                r"^(?!.*\b(?:saved|written) (?:to|in|at)\b).*?\b(?:sav(?:e|ing|es)|writ(?:e|ing)|upload(?:ing)?|dump(?:ing)?|flush(?:ing)?"
                r"|gather(?:ing)?)\b.{0,60}?(?:check-?point|ckpt|model|state[_ ]?dict|optimizer|weights|global_step\d*"
                r"|snapshot)|(?:check-?point(?:ing)?|ckpt).{0,30}(?:saving|writing|uploading|save started|to be saved)"
                r"|save_checkpoint"
            ),
        ),
        (
            # One of several shards, and not the last one: the save goes on.
            "saving",
            "-of-",
            r"\b(?:sav(?:ed|ing|e)|wrote|writ(?:ten|ing)|upload(?:ed|ing))\b.{0,200}?-0*+(?P<done>\d+)-of-0*+(?P<total>(?!(?P=done)\b)\d+)",
        ),
        (
            "saved",
            "saved ckpt checkpoint successfully",
            (
                r"\b(?:saved|wrote|written)\b.{0,60}(?:check-?point|ckpt|model|state|optimizer)|successfully saved"
                r"|(?:check-?point|ckpt).{0,60}(?:saved|written|complete)"
            ),
        ),
        (
            "downloading",
            "download fetching resolving pulling b/s]",
            # A bar with bytes a second is a transfer.
            r"\bdownload(?:ing)?\b|\d ?[kMGT]?i?B/s\]|Fetching \d+ files|Resolving data files|\bpulling\b.{0,30}(?:model|layer|image)",
        ),
        (
            "preprocessing",
            (
                "tokeniz map mapping preprocess index packing grouping generating filter caching cache building "
                "dataset samples shuffl convert extract prepar"
            ),
            (
                r"\btokeniz(?:e|ing|ation)\b|\brunning tokenizer\b|(?-i:\bMap\b) ?(?:\(num_proc|:)|\bpre-?process\w*"
                r"|\bbuild(?:ing)?\b.{0,30}(?:ind(?:ex|ices)|mapping|dataset|cache|vocab|samples)|\bpacking\b"
                r"|Grouping texts|Generating .{0,40}(?:split|examples|samples|cache)|\bFilter(?:ing)?\b ?(?:\(num_proc"
                r"|:|\d)|\bcach(?:e|ing)\b.{0,30}(?:dataset|data|latents|embeddings|features|images)"
                r"|\bconvert(?:ing)?\b.{0,40}(?:examples|features|format|dataset)"
                r"|\bextract(?:ing)?\b.{0,30}(?:features|archive|tar|frames)|creating .{0,20}index"
                r"|\bscanning\b.{0,40}(?:images|labels|files)"
                r"|\bprepar(?:e|ing)\b.{0,30}\b(?:data\w*|(?:train|val|test|eval)\w* ?(?:set|split|data)|splits?|samples|shards|examples)\b"
            ),
        ),
        (
            "evaluating",
            "eval valid test predict generat score bench",
            (
                r"\b(?:eval(?:uat(?:e|ing|ion|or))?|valid(?:at(?:e|ing|ion))?|Validation|Testing|predict(?:ing|ion)?"
                r"|inference|scoring)\b(?!.{0,20}(?:loss|ppl|acc\w*|metrics?"
                r"|results?)\b.{0,12}(?:[=:]|is) ?\d)|Running (?:generat\w+|loglikelihood|eval\w*)|\bgenerate_until\b"
            ),
        ),
        (
            "compiling",
            "compil inductor autotun dynamo ninja nvcc triton graph cudagraph jit building_extension",
            (
                r"\b(?:torch\.)?compil(?:e|ing|ation)\b|\binductor\b|\bautotun\w+|\bdynamo\b|\bninja\b|\bnvcc\b"
                r"|triton.{0,20}(?:compil|kernel|autotun)|[Cc]aptur\w+.{0,20}(?:CUDA )?graph"
                r"|cuda ?graphs?.{0,20}captur|\bJIT\b|Building extension|Loading extension module|(?:Using"
                r"|Creating) .{0,60}torch_extensions"
            ),
        ),
        (
            "first_step",
            "first warm before_the_start",
            (
                r"first (?:step|iteration|batch|forward)|before the start of training step|warm-?up (?:step|iteration"
                r"|run|phase|started|begins)|profil(?:e|ing) (?:run|memory)"
            ),
        ),
        (
            "starting",
            "init_process_group initializing starting rendezvous setting_up joining init",
            (
                r"init_process_group|[Ii]nitiali[sz]ing (?:distributed|process group|torch\.?distributed|NCCL|megatron"
                r"|model parallel)|[Rr]endezvous|[Ss]etting up (?:process|distributed)|Starting (?:worker|elastic"
                r"|training|process)|NCCL INFO (?:Bootstrap|comm|Using network|Init|ncclCommInit)"
                r"|Start(?:ed)? process with rank"
            ),
        ),
        (
            "ready",
            "init_complete initialized ready",
            r"Init COMPLETE|process group (?:is )?(?:initialized|ready)|distributed (?:is )?initialized",
        ),
        (
            "training",
            "actor_train train_start timer training_start start_training starting_training training_...",
            (
                r"(?:Timer )?(?<!\w)\w{0,30}train\w{0,30} start(?:ed)?\b|(?:start(?:ing|ed)?|begin(?:ning)?) (?:the )?training"
                r"|training (?:loop )?(?:starts?|started|begins?)|^\s*training \.\.\.\s*$"
            ),
        ),
        also=True,
    ),
)
