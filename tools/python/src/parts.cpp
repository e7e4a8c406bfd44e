#include "binding.hpp"

namespace binding {
namespace {

using Pair = std::pair<int64_t, int64_t>;
/// One stretch, or several.
using Lines = std::optional<std::variant<Pair, std::vector<Pair>>>;
constexpr const char* kUse = "give (begin, end), or an ascending list of such; None: all";

/// @param what  "part 'q': rows", for messages.
std::optional<std::vector<muonrt_run_t>> runs_of(const std::string& what, nb::handle given) {
  Lines lines;
  if (!nb::try_cast(given, lines))
    refuse(kInvalidArg, cat(what, " is ", nb::repr(given).c_str(), "; ", kUse));
  if (!lines) return std::nullopt;
  std::vector<muonrt_run_t> out;
  if (const auto* one = std::get_if<Pair>(&*lines)) {
    out.push_back({one->first, one->second});
  } else {
    for (const auto& [begin, end] : std::get<std::vector<Pair>>(*lines))
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

QkClip make_clip(const std::string& kind, int32_t layer, int32_t heads, int32_t kv_heads,
                 int32_t head_dim, int32_t nope, int32_t rope, int32_t v_dim,
                 std::vector<int32_t> select, double threshold, double exponent) {
  QkClip out{std::move(select), muonrt::detail::filled(muonrt_qk_clip_init_sized)};
  muonrt_qk_clip_t& s = out.settings;
  s.kind = qk_clip_of(kind);
  s.layer = layer;
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
  nb::class_<Part>(module, "Part", "Rows and columns of a matrix, orthogonalized by themselves")
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
          "rows, cols: (begin, end), or an ascending list of such; none: all. Rows are outputs,\n"
          "also of a transposed parameter. Parts of a Param tile its matrix, of a stack each; the\n"
          "scale is that of a part's own shape, times scale_factor. lr_factor: times the\n"
          "parameter's. normuon_axis: \"\": as the parameter.")
      .def_ro("name", &Part::name);
  nb::class_<QkClip>(module, "QkClip", "How a weight of attention answers large logits")
      .def(
          "__init__",
          [](QkClip* self, const std::string& kind, int32_t layer, int32_t heads, int32_t kv_heads,
             int32_t head_dim, int32_t nope, int32_t rope, int32_t v_dim,
             std::vector<int32_t> select, double threshold, double exponent) {
            new (self) QkClip(make_clip(kind, layer, heads, kv_heads, head_dim, nope, rope, v_dim,
                                        std::move(select), threshold, exponent));
          },
          nb::arg("kind"), nb::arg("layer"), nb::arg("heads"), nb::kw_only(),
          nb::arg("kv_heads") = 0, nb::arg("head_dim") = 0, nb::arg("nope") = 0,
          nb::arg("rope") = 0, nb::arg("v_dim") = 0, nb::arg("select") = std::vector<int32_t>{},
          nb::arg("threshold") = 100.0, nb::arg("exponent") = 0.5,
          "A head whose largest logit (step(qk_logits=)) is above `threshold` has its rows\n"
          "multiplied: gamma = threshold / logit. Rows are counted in the whole weight.\n"
          "kind: \"q\": heads x head_dim rows, by gamma^exponent; \"k\": kv_heads x head_dim, by "
          "the\n"
          "smallest gamma of its heads ^ (1 - exponent); \"mla_q\": heads x (nope + rope);\n"
          "\"mla_kv\": kv_heads x (nope + v_dim); \"qkv\": fused, group by group.\n"
          "layer: a number that the weights of a layer share. kv_heads: 0: as heads. select: the\n"
          "query heads that may be clipped; empty: all.");
}

}  // namespace binding
