"""The golf architecture against a second, plain implementation of parameter-golf's forward pass."""

import math

import pytest
import torch
import torch.nn.functional as F

from tiebeam.errors import BadRequest
from tiebeam.nn import GPT, GPTConfig


def norm(x, eps):
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def straightforward(config, w, ids):  # {name: tensor}, [B, T] -> [B, T, V]
    """One sequence, one head, one position at a time where that is the obvious way; no library attention."""
    eps, H, K, d = config.norm_eps, config.heads, config.kv_heads, config.dim // config.heads
    B, T = ids.shape
    x = w["tok_emb.weight"][ids]
    if "embed_proj.weight" in w:
        x = x @ w["embed_proj.weight"].T
    x = x0 = norm(x, eps)
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    skips: list[torch.Tensor] = []
    for i in range(config.layers):
        b = {n.removeprefix(f"blocks.{i}."): t for n, t in w.items() if n.startswith(f"blocks.{i}.")}
        half = config.layers // 2
        if i >= half and skips:
            x = x + w["skip_weights"][i - half] * skips.pop()
        x = b["resid_mix"][0] * x + b["resid_mix"][1] * x0
        y = norm(x, eps)
        q = norm((y @ b["attn.c_q.weight"].T).reshape(B, T, H, d), eps)
        k = norm((y @ b["attn.c_k.weight"].T).reshape(B, T, K, d), eps)
        v = (y @ b["attn.c_v.weight"].T).reshape(B, T, K, d)
        turned = []
        for z in (q, k):
            z = z.clone()
            for t in range(T):
                for j in range(d // 2):
                    angle = t * config.rope_theta ** (-2 * j / d)
                    a, c = z[:, t, :, j].clone(), z[:, t, :, j + d // 2].clone()
                    z[:, t, :, j] = a * math.cos(angle) + c * math.sin(angle)
                    z[:, t, :, j + d // 2] = c * math.cos(angle) - a * math.sin(angle)
            turned.append(z)
        q, k = turned
        heads = []
        for h in range(H):
            g = h // (H // K)
            score = q[:, :, h] * b["attn.q_gain"][h] @ k[:, :, g].transpose(1, 2) / math.sqrt(d)
            heads.append(score.masked_fill(~causal, -math.inf).softmax(-1) @ v[:, :, g])
        x = x + b["attn_scale"] * (torch.cat(heads, -1) @ b["attn.proj.weight"].T)
        y = norm(x, eps) @ b["mlp.fc.weight"].T
        x = x + b["mlp_scale"] * (y.clamp_min(0) ** 2 @ b["mlp.proj.weight"].T)
        if i < half:
            skips.append(x)
    x = norm(x, eps)
    for name in ("bridge.weight", "head_proj.weight"):
        if name in w:
            x = x @ w[name].T
    z = x @ w.get("lm_head.weight", w["tok_emb.weight"]).T
    return z if config.softcap is None else config.softcap * torch.tanh(z / config.softcap)


def small(**changes):
    sizes = {"vocab": 23, "dim": 16, "layers": 5, "heads": 4, "kv_heads": 2, "context": 12}
    return GPTConfig(**{"arch": "golf", **sizes, "softcap": 4.0, **changes})


def scrambled(config):
    """A model in float64 whose every weight matters, zeros included."""
    torch.manual_seed(0)
    model = GPT(config).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.3)
    return model


@pytest.mark.parametrize(
    "changes",
    [{}, {"layers": 4}, {"layers": 1}, {"kv_heads": 4}, {"softcap": None}, {"tie": False}, {"bridge": True},
     {"embed_dim": 6}, {"embed_dim": 6, "tie": False}, {"rope_theta": 500.0, "mlp_dim": 40}],
)  # fmt: skip
def test_logits_and_loss_match_a_plain_forward_pass(changes):
    config = small(**changes)
    model = scrambled(config)
    ids, targets = torch.randint(23, (2, 9)), torch.randint(23, (2, 9))
    exact = straightforward(config, model.state_dict(), ids)
    torch.testing.assert_close(model(ids).detach(), exact, rtol=1e-9, atol=1e-9)
    loss = F.cross_entropy(exact.flatten(0, 1), targets.flatten())
    torch.testing.assert_close(model(ids, targets).detach(), loss, rtol=1e-9, atol=1e-9)


def test_gradients_match_autograd_on_a_plain_forward_pass():
    config = small(bridge=True)
    model = scrambled(config)
    ids, targets = torch.randint(23, (2, 9)), torch.randint(23, (2, 9))
    model(ids, targets).backward()
    leaves = {n: t.detach().clone().requires_grad_() for n, t in model.state_dict().items()}
    F.cross_entropy(straightforward(config, leaves, ids).flatten(0, 1), targets.flatten()).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, leaves[name].grad, rtol=1e-8, atol=1e-10, msg=name)


def test_the_baseline_has_its_published_parameter_count():
    config = GPTConfig(arch="golf", vocab=1024, dim=512, layers=9, heads=8, kv_heads=4, softcap=30.0)
    with torch.device("meta"):
        model = GPT(config)
    assert sum(p.numel() for p in model.parameters()) == 17_059_912


def test_initialization_matches_the_baseline():
    torch.manual_seed(0)
    model = GPT(GPTConfig(arch="golf", vocab=1024, dim=512, layers=2, heads=8, kv_heads=4, softcap=30.0))
    state = model.state_dict()
    assert state["tok_emb.weight"].std().item() == pytest.approx(0.005, rel=0.01)
    for name, tensor in state.items():
        if name.endswith("proj.weight"):
            assert not tensor.any()
    block = model.blocks[0]
    assert (block.attn.q_gain == 1.5).all()
    assert (block.resid_mix == torch.tensor([[1.0], [0.0]])).all()
    assert block.attn.c_q.weight.abs().max() <= 512**-0.5
    ids, targets = torch.randint(1024, (2, 64)), torch.randint(1024, (2, 64))
    assert model(ids, targets).item() == pytest.approx(math.log(1024), abs=0.05)


def test_untied_initialization_matches_the_baseline():
    model = GPT(small(tie=False, vocab=4000))
    assert model.tok_emb.weight.std().item() == pytest.approx(1.0, rel=0.05)
    assert not model.lm_head.weight.any()


@pytest.mark.parametrize("dim", [16, 64])
def test_a_factorized_embedding_starts_with_small_logits(dim):
    torch.manual_seed(0)
    model = GPT(small(dim=dim, embed_dim=8, softcap=None, vocab=300))
    ids = torch.arange(12).unsqueeze(0)
    own = model(ids)[0, torch.arange(12), ids[0]]
    assert own.abs().max() < 2.5 * 3


def test_tensor_names_and_shapes_are_fixed():
    state = GPT(small(layers=2, bridge=True, tie=False)).state_dict()
    assert {n: tuple(t.shape) for n, t in state.items() if not n.startswith("blocks.1")} == {
        "tok_emb.weight": (23, 16), "lm_head.weight": (23, 16), "skip_weights": (1, 16), "bridge.weight": (16, 16),
        "blocks.0.attn.c_q.weight": (16, 16), "blocks.0.attn.c_k.weight": (8, 16), "blocks.0.attn.c_v.weight": (8, 16),
        "blocks.0.attn.proj.weight": (16, 16), "blocks.0.attn.q_gain": (4,), "blocks.0.attn_scale": (16,),
        "blocks.0.mlp_scale": (16,), "blocks.0.resid_mix": (2, 16), "blocks.0.mlp.fc.weight": (32, 16),
        "blocks.0.mlp.proj.weight": (16, 32),
    }  # fmt: skip
    factorised = GPT(small(layers=1, embed_dim=6)).state_dict()
    assert tuple(factorised["embed_proj.weight"].shape) == (16, 6)
    assert tuple(factorised["head_proj.weight"].shape) == (6, 16)
    assert tuple(factorised["tok_emb.weight"].shape) == (23, 6)


@pytest.mark.parametrize("changes", [{}, {"tie": False}, {"bridge": True}, {"embed_dim": 6}, {"softcap": None}])
def test_export_round_trips(changes):
    model = scrambled(small(**changes)).float()
    config, tensors = model.export()
    assert config["model_type"] == "tiebeam_golf"
    assert config["tie_word_embeddings"] is (changes.get("tie", True))
    again = GPT(GPTConfig.from_hf(config))
    again.load_state_dict(tensors)
    ids = torch.randint(23, (1, 8))
    assert torch.equal(again(ids), model(ids))


def test_untie_during_a_run_keeps_the_function_and_splits_the_roles():
    model = scrambled(small(tie=0.5)).float()
    assert model.config.untie_at == 0.5
    assert model.tied
    assert model.lm_head is None
    ids, targets = torch.randint(23, (2, 8)), torch.randint(23, (2, 8))
    roles = model.roles()
    adam = torch.optim.Adam([{"params": v} for v in roles.values() if v])
    model(ids, targets).backward()
    adam.step()
    adam.zero_grad()
    before = model(ids).detach()
    head = model.untie(adam)
    assert not model.tied
    assert model.roles()["head"] == [head]
    torch.testing.assert_close(model(ids).detach(), before, rtol=0, atol=0)
    assert torch.equal(adam.state[head]["exp_avg_sq"], adam.state[model.table.weight]["exp_avg_sq"])
    model(ids, targets).backward()
    adam.step()
    assert not torch.equal(head, model.table.weight)
    config, tensors = model.export()
    assert config["tie_word_embeddings"] is False
    assert "lm_head.weight" in tensors
    with pytest.raises(BadRequest, match="already untied"):
        model.untie()


@pytest.mark.parametrize("changes", [{}, {"tie": False}, {"bridge": True}, {"embed_dim": 6}])
def test_roles_hold_every_parameter_once(changes):
    model = GPT(small(**changes))
    roles = model.roles()
    listed = [id(p) for group in roles.values() for p in group]
    assert sorted(listed) == sorted(id(p) for p in model.parameters())
    assert [tuple(p.shape) for p in roles["table"]] == [(23, changes.get("embed_dim", 16))]
    assert len(roles["head"]) == (0 if model.tied else 1)
    assert all(p.ndim == 2 for p in roles["matrices"])
    names = {id(p): n for n, p in model.named_parameters()}
    endings = {names[id(p)].split(".")[-1] for p in roles["scalars"]}
    assert endings == {"skip_weights", "q_gain", "attn_scale", "mlp_scale", "resid_mix"}


def test_loss_options_reach_the_loss():
    model = scrambled(small())
    ids, targets = torch.randint(23, (2, 9)), torch.randint(23, (2, 9))
    each = model(ids, targets, reduction="none")
    assert each.shape == (2, 9)
    torch.testing.assert_close(each.mean(), model(ids, targets))


def test_wrong_inputs_and_configs_are_refused():
    model = GPT(small())
    with pytest.raises(BadRequest, match="13 tokens exceed the context of 12"):
        model(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(BadRequest, match=r"\[batch, time\]"):
        model(torch.zeros(3, dtype=torch.long))
    for changes, message in (
        ({"arch": "gpt2"}, "'gpt2'"), ({"heads": 3}, "heads=3"), ({"kv_heads": 3}, "kv_heads=3"), ({"tie": 1.5}, "1.5"),
        ({"embed_dim": 4, "bridge": True}, "drop bridge"), ({"layers": 0}, "layers must be at least 1, not 0"),
        ({"softcap": 0.0}, "softcap"), ({"head_dim": 3}, "even"), ({"embed_dim": 0}, "embed_dim=0"),
    ):  # fmt: skip
        with pytest.raises(BadRequest, match=message):
            small(**changes)
    with pytest.raises(BadRequest, match="'llama'"):
        GPTConfig.from_hf({"model_type": "llama"})
    with pytest.raises(BadRequest, match="vocab_size"):
        GPTConfig.from_hf({"model_type": "qwen3"})


def test_a_model_from_the_meta_device_trains_after_reset():
    with torch.device("meta"):
        model = GPT(small())
    model.to_empty(device="cpu")
    model.reset_parameters()
    ids = torch.randint(23, (2, 9))
    model(ids, ids).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_bf16_autocast_stays_close():
    model = scrambled(small()).float()
    ids, targets = torch.randint(23, (2, 9)), torch.randint(23, (2, 9))
    exact = model(ids, targets).item()
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, targets)
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.05)


def test_a_compiled_model_has_the_same_loss_and_gradient():
    model = scrambled(small(layers=2))
    ids, targets = torch.randint(23, (2, 9)), torch.randint(23, (2, 9))
    model(ids, targets).backward()
    exact = {n: p.grad for n, p in model.named_parameters()}
    model.zero_grad()
    torch.compile(model, backend="aot_eager")(ids, targets).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, exact[name], msg=name)


def test_fsdp_matches_the_plain_gradient_and_keeps_the_tie():
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = scrambled(small(layers=2))
    ids = torch.randint(23, (2, 9))
    model(ids, ids).backward()
    exact, model.table.weight.grad = model.table.weight.grad, None
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        for _ in range(2):
            model.zero_grad()
            model(ids, ids).backward()
        torch.testing.assert_close(model.table.weight.grad.full_tensor(), exact)
        assert [n for n in model.state_dict() if "lm_head" in n] == []
    finally:
        dist.destroy_process_group()
