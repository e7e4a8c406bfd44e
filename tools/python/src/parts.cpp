#include "binding.hpp"

namespace binding {
namespace {

using Pair = std::pair<int64_t, int64_t>;
/// One range, a list of ranges, or None.
using Ranges = std::optional<std::variant<Pair, std::vector<Pair>>>;
constexpr const char* kUse = "pass (begin, end), an ascending list of such pairs, or None for all";

/// Converts ranges to C structs.
/// @param what  the name of the argument in messages, such as "part 'q': rows".
std::optional<std::vector<muonrt_run_t>> runs_of(const std::string& what, nb::handle given) {
  Ranges ranges;
  if (!nb::try_cast(given, ranges))
    refuse(kInvalidArg, cat(what, " is ", nb::repr(given).c_str(), "; ", kUse));
  if (!ranges) return std::nullopt;
  std::vector<muonrt_run_t> out;
  if (const auto* one = std::get_if<Pair>(&*ranges)) {
    out.push_back({one->first, one->second});
  } else {
    for (const auto& [begin, end] : std::get<std::vector<Pair>>(*ranges))
      out.push_back({begin, end});
    if (out.empty()) refuse(kInvalidArg, cat(what, " is empty; ", kUse));
  }
  return out;
}

Part make_part(const std::string& name, nb::handle rows, nb::handle cols, double scale_factor,
               double lr_factor, const std::string& normuon_axis) {
  const std::string what = cat("part '", name, "': ");
  Part out{name, runs_of(what + "rows", rows), runs_of(what + "cols", cols),
           muonrt::detail::filled(muonrt_part_init_sized)};
  out.settings.scale_factor = scale_factor;
  out.settings.lr_factor = lr_factor;
  out.settings.normuon_axis = normuon_of(normuon_axis);
  return out;
}

QkClip make_clip(const std::optional<std::string>& kind, std::optional<int32_t> layer,
                 int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t nope, int32_t rope,
                 int32_t v_dim, std::vector<int32_t> select, double threshold, double exponent) {
  QkClip out{std::move(select), muonrt::detail::filled(muonrt_qk_clip_init_sized)};
  muonrt_qk_clip_t& s = out.settings;
  if (!kind && layer)
    refuse(kInvalidArg, cat("QkClip: layer is ", *layer,
                            ", but kind is None; set kind, or leave layer out, so that the name of "
                            "the parameter determines both"));
  s.kind = kind ? qk_clip_of(*kind) : MUONRT_QK_FROM_NAME;
  s.layer = layer.value_or(-1);
  s.heads = heads;
  s.kv_heads = kv_heads;
  s.head_dim = head_dim;
  s.nope = nope;
  s.rope = rope;
  s.v_dim = v_dim;
  s.n_select = static_cast<int32_t>(out.select.size());
  s.threshold = threshold;
  s.exponent = exponent;
  return out;
}

}  // namespace

void bind_parts(nb::module_& module) {
  nb::class_<Part>(module, "Part",
                   "A part of a matrix. Muon orthogonalizes it as a separate matrix.")
      .def(
          "__init__",
          [](Part* self, const std::string& name, nb::handle rows, nb::handle cols,
             double scale_factor, double lr_factor, const std::string& normuon_axis) {
            new (self) Part(make_part(name, rows, cols, scale_factor, lr_factor, normuon_axis));
          },
          nb::arg("name") = "", nb::kw_only(), nb::arg("rows").none() = nb::none(),
          nb::arg("cols").none() = nb::none(), nb::arg("scale_factor") = 1.0,
          nb::arg("lr_factor") = 1.0, nb::arg("normuon_axis") = "",
          nb::sig(
              "def __init__(self, name: str = '', *, "
              "rows: tuple[int, int] | collections.abc.Sequence[tuple[int, int]] | None = None, "
              "cols: tuple[int, int] | collections.abc.Sequence[tuple[int, int]] | None = None, "
              "scale_factor: float = 1.0, lr_factor: float = 1.0, "
              "normuon_axis: str = '') -> None"),
          "Creates a part. The parts of a parameter must cover its matrix, or each matrix of a\n"
          "stack, without overlap. The scale of a part's update depends on the shape of the\n"
          "part, not on the shape of the matrix.\n\n"
          ":param name: a name for messages. By default it is the index of the part.\n"
          ":param rows: a range (begin, end), or a list of ranges in ascending order. None\n"
          "    selects all rows. Rows are the outputs of the layer, even if the parameter is\n"
          "    transposed.\n"
          ":param cols: the ranges of columns, in the same form.\n"
          ":param scale_factor: factor by which the group's scale_factor is multiplied.\n"
          ":param lr_factor: factor by which the parameter's lr_factor is multiplied.\n"
          ":param normuon_axis: axis of NorMuon: \"rows\", \"columns\" or \"longer\". By\n"
          "    default it is the axis of the parameter.")
      .def_ro("name", &Part::name);
  nb::class_<QkClip>(module, "QkClip", "Settings of QK-clip for one weight of an attention layer.")
      .def(
          "__init__",
          [](QkClip* self, const std::optional<std::string>& kind, std::optional<int32_t> layer,
             int32_t heads, int32_t kv_heads, int32_t head_dim, int32_t nope, int32_t rope,
             int32_t v_dim, std::vector<int32_t> select, double threshold, double exponent) {
            new (self) QkClip(make_clip(kind, layer, heads, kv_heads, head_dim, nope, rope, v_dim,
                                        std::move(select), threshold, exponent));
          },
          nb::arg("kind").none() = nb::none(), nb::arg("layer").none() = nb::none(),
          nb::arg("heads") = 0, nb::kw_only(), nb::arg("kv_heads") = 0, nb::arg("head_dim") = 0,
          nb::arg("nope") = 0, nb::arg("rope") = 0, nb::arg("v_dim") = 0,
          nb::arg("select") = std::vector<int32_t>{}, nb::arg("threshold") = 100.0,
          nb::arg("exponent") = 0.5,
          nb::sig("def __init__(self, kind: str | None = None, layer: int | None = None, "
                  "heads: int = 0, *, kv_heads: int = 0, head_dim: int = 0, nope: int = 0, rope: "
                  "int = 0, v_dim: int = 0, "
                  "select: collections.abc.Sequence[int] = [], threshold: float = 100.0, "
                  "exponent: float = 0.5) -> None"),
          "If the largest logit of a head exceeds threshold, the step multiplies the rows of\n"
          "this head by a power of gamma = threshold / logit. Pass the logits to\n"
          "Optimizer.step() as ``qk_logits``. All numbers of rows below are those of the whole\n"
          "weight, not of a shard.\n\n"
          ":param kind: the kind of the weight, which determines its rows and their factors.\n"
          "    muonrt_qk_clip_t describes all kinds. \"q\" has heads x head_dim rows with the\n"
          "    factor gamma^exponent. \"k\" has kv_heads x head_dim rows with the factor\n"
          "    gamma^(1 - exponent); gamma is the smallest gamma of the query heads that share\n"
          "    the key head. \"mla_q\" has heads x (nope + rope) rows, and \"mla_kv\" has\n"
          "    kv_heads x (nope + v_dim) rows. \"qkv\" and \"qkv_blocks\" are fused\n"
          "    projections. With None, the name of the parameter determines the kind and the\n"
          "    layer, so you can use one QkClip for all parameters of a model.\n"
          ":param layer: number of the layer, equal for all weights of a layer. None selects\n"
          "    the last number among the parts of the parameter's name. If kind is None, layer\n"
          "    must be None, too.\n"
          ":param heads: number of query heads.\n"
          ":param kv_heads: number of key heads. 0 means that it is equal to heads.\n"
          ":param head_dim: rows per head of \"q\", \"k\", \"qkv\" and \"qkv_blocks\".\n"
          ":param nope: rows per head without rotary embedding, for \"mla_q\" and \"mla_kv\".\n"
          ":param rope: rows per head with rotary embedding, for \"mla_q\".\n"
          ":param v_dim: rows of values per head, for \"mla_kv\".\n"
          ":param select: indices of the query heads that may be clipped. An empty list selects\n"
          "    all heads.\n"
          ":param threshold: limit of a logit.\n"
          ":param exponent: exponent of gamma for queries, from 0 to 1. A larger value scales\n"
          "    queries more and keys less.");
}

}  // namespace binding
