"""Defines the keys in the state dicts of other optimizers, for muonrt.convert."""

# Maps the keys of a parameter's state to muonrt's kinds of state. Sources: torch/optim/_muon.py and
# adamw.py of PyTorch 2.15; examples/toy_train.py of MoonshotAI/Moonlight c2ad5b2;
# dion/megabatch_base.py, muon.py and scalar_opts.py of microsoft/dion 0a059a4. In torch, the
# momentum is an exponential moving average; in Moonlight and Dion it is a heavy-ball sum.
KINDS = {
    "muonrt.torch": {
        "muon": {"momentum_buffer": "momentum", "step": "step", "master": "master",
                 "normuon": "normuon"},
        "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance", "step": "step",
                  "master": "master"}},
    "torch": {"muon": {"momentum_buffer": "momentum"},
              "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance", "step": "step"}},
    "moonlight": {"muon": {"momentum_buffer": "momentum"},
                  "adamw": {"moment1": "momentum", "moment2": "variance", "step": "step"}},
    "dion": {"muon": {"momentum": "momentum"},
             "adamw": {"momentum": "momentum", "variance": "variance", "step_dev": "step"}}}
# Maps the settings of a group to muonrt.torch's names.
MUON = {k: k for k in ("lr", "weight_decay", "momentum", "nesterov")}
ADAMW = {k: k for k in ("lr", "weight_decay", "betas", "eps")}
SETTINGS = {
    "muonrt.torch": {"muon": MUON | {"momentum_kind": "momentum_kind"}, "adamw": ADAMW},
    "torch": {"muon": MUON, "adamw": ADAMW},
    "moonlight": {"muon": {"lr": "lr", "wd": "weight_decay", "momentum": "momentum",
                           "nesterov": "nesterov"},
                  "adamw": {"lr": "lr", "wd": "weight_decay", "adamw_betas": "betas",
                            "adamw_eps": "eps"}},
    "dion": {"muon": {"lr": "lr", "weight_decay": "weight_decay", "mu": "momentum",
                      "nesterov": "nesterov"},
             "adamw": {"lr": "lr", "weight_decay": "weight_decay", "betas": "betas",
                       "epsilon": "eps"}}}
# RULES lists the settings of an update rule that are not part of the state. With these values, the
# rule is the same as muonrt's. _DION lists such settings of a Dion param_group, with the values from
# Dion's reference implementation.
_DION = {"cautious_wd": False, "nesterov": False, "flatten": False, "adjust_lr": "spectral_norm",
         "mu": 0.95, "betas": (0.9, 0.95), "epsilon": 1e-8}
RULES = {
    "muonrt.torch": {"muon": {}, "adamw": {}},
    "torch": {"muon": {"ns_coefficients": (3.4445, -4.7750, 2.0315), "eps": 1e-7, "ns_steps": 5,
                       "adjust_lr_fn": None},
              "adamw": {"amsgrad": False, "maximize": False, "foreach": None, "capturable": False,
                        "differentiable": False, "fused": None, "decoupled_weight_decay": True}},
    "moonlight": {"muon": {"ns_steps": 5, "adamw_betas": (0.9, 0.95), "adamw_eps": 1e-8},
                  "adamw": {"ns_steps": 5, "momentum": 0.95, "nesterov": True}},
    "dion": {"muon": _DION, "adamw": _DION}}
# Values that select an update rule that muonrt does not implement. The converter rejects checkpoints
# that contain one of them.
REFUSED = {"amsgrad": True, "maximize": True, "decoupled_weight_decay": False}
STRUCTURE = {"params", "param_names", "role", "algorithm", "step", "steps", "initial_lr"}
