"""Tests muonrt.torch.Muon on tiny models in common trainers (transformers, accelerate and peft) and
with FSDP1. A test is skipped if its library is not installed."""

import os

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402

import muonrt.torch  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = "1"


def language_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16))


class Counting(torch.utils.data.Dataset):
    """A dataset of sequences of consecutive numbers."""

    def __len__(self):
        return 64

    def __getitem__(self, i):
        tokens = (torch.arange(12) + i) % 48
        return {"input_ids": tokens, "labels": tokens}


def adapted_model():
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(language_model(), peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))


def trained(m, folder, optimizers=(None, None), choice=None, **arguments):
    """Returns the Trainer after it has run, and the losses that it has logged."""
    import transformers

    settings = dict(output_dir=str(folder), max_steps=16, per_device_train_batch_size=8,
                    learning_rate=1e-2, logging_steps=1, report_to=[], use_cpu=True, seed=0,
                    disable_tqdm=True, save_steps=8, lr_scheduler_type="cosine", warmup_steps=2)
    trainer = transformers.Trainer(
        model=m, train_dataset=Counting(), optimizers=optimizers, optimizer_cls_and_kwargs=choice,
        args=transformers.TrainingArguments(**settings | arguments))
    trainer.train(resume_from_checkpoint=arguments.get("resume_from_checkpoint"))
    return trainer, [e["loss"] for e in trainer.state.log_history if "loss" in e]


def test_transformers_trainer_creates_the_optimizer(tmp_path):
    m = language_model()
    trainer, losses = trained(m, tmp_path, choice=(muonrt.torch.Muon, {"lr": 1e-2, "adamw_lr": 1e-2}),
                              weight_decay=0.3, save_steps=100)
    groups = trainer.optimizer.param_groups
    assert losses[-1] < 0.85 * losses[0]
    assert sorted(n for g in groups for n in g["param_names"]) == sorted(
        n for n, _ in m.named_parameters())
    assert {(g["role"], g["weight_decay"]) for g in groups} >= {("muon", 0.3), ("adamw", 0.0)}


def test_peft_adapters_of_a_frozen_model(tmp_path):
    m = adapted_model()
    frozen = {n: p.detach().clone() for n, p in m.named_parameters() if not p.requires_grad}
    one = muonrt.torch.Muon(m.named_parameters(), lr=1e-2, adamw_lr=1e-2)
    _, losses = trained(m, tmp_path, (one, None), save_steps=100, max_steps=24)
    assert len(one._names) == 8 and losses[-1] < losses[0]
    for n, p in m.named_parameters():
        assert n not in frozen or torch.equal(p, frozen[n])


def tied_model():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=48, n_positions=16, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))


def sharded(m):
    """Shards each layer as one unit, and in the first layer also each matrix as a separate unit."""
    from torch.distributed.fsdp import fully_shard

    layers = [x for x in m.modules() if type(x).__name__ in ("LlamaDecoderLayer", "GPT2Block")]
    leaves = [x for x in layers[0].modules() if type(x) is torch.nn.Linear or type(x).__name__ == "Conv1D"]
    if not any(hasattr(x, "base_layer") for x in m.modules()):
        layers = leaves + layers
    for layer in layers:
        fully_shard(layer)
    return fully_shard(m)


def steps(m, one):
    tokens = torch.stack([Counting()[i]["input_ids"] for i in range(4)])
    for _ in range(3):
        m(input_ids=tokens, labels=tokens).loss.backward()
        one.step()
        one.zero_grad()


def whole(p):
    return p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach()


def as_models(rank, size):
    """A sharded and compiled model has the same roles as the whole model, and nearly the same
    weights after three steps. The test does not run the compiled code, because this would take
    seconds."""
    for make in (language_model, tied_model, adapted_model):
        m, twin = sharded(make()), make()
        twin.load_state_dict({name: whole(p) for name, p in m.state_dict().items()})
        ours = muonrt.torch.Muon(torch.compile(m, backend="eager"), lr=1e-3)
        theirs = muonrt.torch.Muon(twin, lr=1e-3)
        assert ours.describe() == theirs.describe()
        steps(m, ours)
        steps(twin, theirs)
        for (name, p), q in zip(m.named_parameters(), twin.parameters(), strict=True):
            assert torch.allclose(whole(p), q, atol=1e-6), name
    # Only the class of this model shows that its last matrix is not a head.
    from torch.distributed.fsdp import fully_shard
    from torch_models import two_layers

    m, twin = fully_shard(two_layers()), two_layers()
    assert muonrt.torch.Muon(m, lr=1e-3).describe() == muonrt.torch.Muon(twin, lr=1e-3).describe()

    with torch.device("meta"):
        late = sharded(language_model())
    with pytest.raises(muonrt.InvalidArgumentError, match="q_proj.weight' is on device 'meta'.*to_empty"):
        muonrt.torch.Muon(late, lr=1e-3)
    late.to_empty(device="cpu")
    late.model.rotary_emb.__init__(late.config)
    for p in late.parameters():
        torch.nn.init.normal_(p, std=0.02) if p.ndim > 1 else torch.nn.init.ones_(p)
    one = muonrt.torch.Muon(late, lr=1e-3)
    steps(late, one)
    assert one.last_report.step == 3 and all(whole(p).isfinite().all() for p in late.parameters())


def test_models_that_are_sharded_compiled_adapted_or_made_on_the_meta_device():
    on_gloo(2, as_models)


def with_accelerate(rank, size):
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517",
                   "ACCELERATE_USE_CPU": "true"}
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False,
                                            auto_wrap_policy="transformer_based_wrap",
                                            transformer_cls_names_to_wrap=["LlamaDecoderLayer"])
    accelerator = Accelerator(cpu=True)
    # accelerate chooses FSDP only on GPUs, but its code also runs on gloo.
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    m = language_model()
    one = muonrt.torch.Muon(m.named_parameters(), lr=1e-2, adamw_lr=1e-2)
    before = [p.detach().clone() for p in m.parameters()]
    names = [n for n, _ in m.named_parameters()]
    m, wrapped = accelerator.prepare(m, one)
    losses = []
    tokens = torch.stack([Counting()[i]["input_ids"] for i in range(8)])
    for _ in range(8):
        wrapped.zero_grad()
        loss = m(input_ids=tokens, labels=tokens).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(m.parameters(), 1.0)
        wrapped.step()
        losses.append(loss.item())
    assert losses[-1] < 0.85 * losses[0], losses
    from torch.distributed.tensor import DTensor

    state = wrapped.state_dict()["state"]
    assert state and one.last_report.step == 8
    now = {n.removeprefix("module."): p for n, p in m.named_parameters()}
    assert {id(p) for g in one.param_groups for p in g["params"]} == {id(p) for p in now.values()}
    for name, old in zip(names, before):
        p = now[name]
        assert isinstance(p, DTensor) and not torch.equal(p.full_tensor(), old), name
        assert isinstance(one.state[p].get("momentum_buffer", one.state[p].get("exp_avg")), DTensor)


def test_accelerate_with_fsdp2():
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers")
    on_gloo(2, with_accelerate)


def as_fsdp1(rank, size, folder):
    """FSDP1 shards parameters into ranges of elements. If all ranks have equal batches, the results
    are bitwise identical to those of one rank."""
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch_models import Model, same_bits

    def wrapped(m, **settings):
        settings |= {"device_id": torch.device("cpu")}  # otherwise FSDP1 requires a GPU
        mesh = dist.init_device_mesh("cpu", (2, size // 2)) if size == 4 else None
        kind = ShardingStrategy.HYBRID_SHARD if size == 4 else ShardingStrategy.FULL_SHARD
        m.up = FullyShardedDataParallel(m.up, device_mesh=mesh, sharding_strategy=kind, **settings)
        return FullyShardedDataParallel(m, device_mesh=mesh, sharding_strategy=kind, **settings)

    with pytest.raises(muonrt.NotSupportedError, match="flat parameter of FSDP1.*use_orig_params=True"):
        muonrt.torch.Muon(wrapped(Model()))
    tokens = torch.arange(11)
    m, twin = wrapped(Model(), use_orig_params=True), Model()
    one = muonrt.torch.Muon(m, lr=0.02)
    alone = muonrt.torch.Muon(twin, lr=0.02, comm=muonrt.Comm.self())
    assert one.describe() == alone.describe() and {p.ndim for p in m.parameters()} == {1}
    for step in range(4):
        for model, optimizer in ((m, one), (twin, alone)):
            torch.nn.functional.cross_entropy(model(tokens), tokens * step % 3).backward()
            optimizer.step()
            optimizer.zero_grad()
    with FullyShardedDataParallel.summon_full_params(m):
        same_bits(m, twin)
    one.save(folder)
    again = Model()
    last = muonrt.torch.Muon(again, lr=0.02, comm=muonrt.Comm.self())
    last.load(folder)
    same_bits(again, twin)
    for p, q in zip(again.parameters(), twin.parameters()):
        for key, tensor in alone.state[q].items():
            assert torch.equal(last.state[p][key], tensor), key


@pytest.mark.parametrize("ranks", [2, 4])
def test_fsdp1_with_original_parameters(ranks, tmp_path):
    on_gloo(ranks, as_fsdp1, str(tmp_path / "saved"))


QUINTIC, MINIMAL = [(3.4445, -4.7750, 2.0315)] * 5, [
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
    (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]


def torchtitan_step():
    """Calls functions of torchtitan's DistMuon, because DistMuon itself needs a GPU."""
    muon = pytest.importorskip("torchtitan.distributed.flex_shard.dist_muon")

    def step(p, grad, momentum):
        out = torch.empty_like(grad)
        muon._prepare_muon_input(grad, momentum, momentum=0.95, nesterov=True, out=out)
        muon._compute_muon_direction(out, ns_coefficients=QUINTIC[0], ns_steps=5, eps=1e-7, out=out)
        muon._apply_muon_update(p, out, lr=0.01, weight_decay=0, adjust_lr_fn="match_rms_adamw",
                                compute_matrix_shape=p.shape)
    return step, QUINTIC, True, lambda m, n: 0.2 * max(m, n) ** 0.5, {}


def deepspeed_step():
    """Calls DeepSpeed's function that updates one matrix. ZeRO applies it to gathered gradients."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.muon.original_muon import muon_update

    def step(p, grad, momentum):
        with torch.compiler.set_stance("force_eager"):
            p.sub_(muon_update(grad.clone(), momentum), alpha=0.01)
    # On the host, DeepSpeed iterates in float32.
    return step, QUINTIC, True, lambda m, n: max(1, m / n) ** 0.5, {
        "muon": {"iteration_dtype": "float32"}, "transport_dtype": "float32"}


def emerging_step():
    """Runs the Muon of Emerging-Optimizers, from which Megatron-LM's Muon is derived."""
    pytest.importorskip("emerging_optimizers")
    from emerging_optimizers.orthogonalized_optimizers import Muon

    made: dict = {}

    def step(p, grad, momentum):
        one = made.setdefault(p, Muon([p], lr=0.01, weight_decay=0, momentum=0.95))
        p.grad = grad.clone()
        one.step()
    return step, MINIMAL, False, lambda m, n: max(m, n) ** 0.5, {}


@pytest.mark.parametrize("preset", ["torchtitan", "deepspeed", "emerging"])
def test_updates_have_the_rounding_errors_of_the_trainers_own_muon(preset):
    """Compares muonrt and the original with the same rule in float64, over 5 steps of matrices of
    three shapes. For square matrices, DeepSpeed uses the standard form, and muonrt the Gram form."""
    step, coefficients, nesterov, scale, settings = globals()[f"{preset}_step"]()
    for shape in ((24, 40), (40, 24), (32, 32))[:2 if preset == "deepspeed" else 3]:
        grads = [torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in range(5)]
        theirs, exact = torch.nn.Parameter(torch.zeros(shape)), torch.zeros(shape).double()
        ours = torch.nn.Parameter(torch.zeros(shape))
        one = muonrt.torch.Muon([("w", ours)], lr=0.01, weight_decay=0, preset=preset, comm=muonrt.Comm.self(),
                                role=lambda name, p: "muon", **settings)
        momentum, buffer = torch.zeros(shape), torch.zeros(shape).double()
        for grad in grads:
            with torch.no_grad():
                step(theirs, grad.clone(), momentum)
            ours.grad = grad.clone()
            one.step()
            buffer.lerp_(grad.double(), 0.05)
            x = torch.lerp(grad.double(), buffer, 0.95) if nesterov else buffer.clone()
            x = x / x.norm()
            for a, b, c in coefficients:
                gram = x @ x.T
                x = a * x + (b * gram + c * gram @ gram) @ x
            exact -= 0.01 * scale(*shape) * x
        largest = exact.abs().max()
        error = {"ours": (ours - exact).abs().max() / largest, "theirs": (theirs - exact).abs().max() / largest}
        assert error["theirs"] < 0.05 and error["ours"] < 1.5 * error["theirs"] + 1e-6, (shape, error)
