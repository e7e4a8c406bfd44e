/// Implements the class muonrt.Plan.
#include "optimizer.hpp"

namespace binding {

namespace {

/// A plan that was computed without an optimizer; see muonrt/plan.h.
struct PlanOfRanks {
  muonrt::Plan plan;
  std::string machine = {};  // the machine for time()
};

nb::dict summary(const PlanOfRanks& self) {
  const muonrt_plan_summary_t s = self.plan.summary();
  nb::dict out;
  out["world"] = s.world;
  out["params"] = s.params;
  out["muon_params"] = s.muon_params;
  out["elements"] = s.elements;
  out["muon_elements"] = s.muon_elements;
  out["matrices"] = s.matrices;
  out["chunks"] = s.chunks;
  out["flops"] = s.flops;
  out["makespan"] = s.makespan;
  out["lower_bound"] = s.lower_bound;
  out["moved_bytes"] = s.moved_bytes;
  out["hidden_bytes"] = s.hidden_bytes;
  out["peers"] = s.peers;
  out["largest_rank"] = s.largest_rank;
  return out;
}

nb::dict rank(const PlanOfRanks& self, int32_t index) {
  const muonrt_plan_rank_t r = self.plan.rank(index);
  nb::dict out;
  out["rank"] = r.rank;
  out["matrices"] = r.matrices;
  out["chunks"] = r.chunks;
  out["cost"] = r.cost;
  out["messages"] = r.messages;
  out["sent_bytes"] = r.sent_bytes;
  out["received_bytes"] = r.received_bytes;
  out["param_bytes"] = r.param_bytes;
  out["grad_bytes"] = r.grad_bytes;
  out["master_bytes"] = r.master_bytes;
  out["moment_bytes"] = r.moment_bytes;
  out["message_bytes"] = r.message_bytes;
  out["staged_bytes"] = r.staged_bytes;
  out["scratch_bytes"] = r.scratch_bytes;
  out["check_bytes"] = r.check_bytes;
  out["total_bytes"] = r.total_bytes;
  return out;
}

nb::dict time(const PlanOfRanks& self, const std::optional<std::string>& given) {
  const std::string machine = given.value_or(self.machine);
  muonrt_plan_time_t t;
  {
    const GilReleased release;
    t = self.plan.time(machine);
  }
  nb::dict out;
  out["rank"] = t.rank;
  out["step_seconds"] = t.step_seconds;
  out["products_seconds"] = t.products_seconds;
  out["local_seconds"] = t.local_seconds;
  out["exchange_seconds"] = t.exchange_seconds;
  out["exposed_seconds"] = t.exposed_seconds;
  out["launch_seconds"] = t.launch_seconds;
  out["sent_bytes"] = t.sent_bytes;
  out["received_bytes"] = t.received_bytes;
  out["messages"] = t.messages;
  out["device_bytes"] = t.device_bytes;
  out["simulated_ranks"] = t.simulated_ranks;
  out["fits"] = t.fits != 0;
  return out;
}

void init(PlanOfRanks* self, const std::vector<Param*>& params, const std::vector<Group*>& groups,
          int32_t world, const nb::kwargs& settings) {
  Options options;
  set_options(options, settings);
  std::vector<ParamView> views(params.size());
  std::vector<muonrt_param_t> c_params;
  for (size_t i = 0; i < params.size(); ++i) {
    fill(views[i], *params[i]);
    c_params.push_back(views[i].c);
  }
  std::vector<muonrt_group_t> c_groups;
  for (const Group* group : groups) c_groups.push_back(group->settings);
  const std::unique_ptr<CallerFunctions> functions = caller_functions(options, params, {});
  const muonrt_optimizer_options_t* given = options.get();
  std::optional<muonrt::Plan> plan;
  with_cause(functions.get(), [&] {
    const GilReleased release;
    plan.emplace(world, *given, c_groups, c_params);
  });
  new (self) PlanOfRanks{std::move(*plan)};
}

}  // namespace

void bind_plan(nb::module_& module, nb::class_<Optimizer>& optimizer) {
  static const std::string made =
      cat("def __init__(self, params: collections.abc.Sequence[Param], groups: "
          "collections.abc.Sequence[Group], world: int = 1, ",
          option_signature(), " -> None");
  nb::class_<PlanOfRanks>(
      module, "Plan",
      "A plan of an optimizer's steps on all ranks, which is computed in one process; see\n"
      "muonrt/plan.h.\n\n"
      "muonrt.plan() creates the plan of a model on a mesh.")
      .def("__init__", &init, nb::arg("params"), nb::arg("groups"), nb::arg("world") = 1,
           nb::arg("settings"), nb::sig(made.c_str()),
           "Plans an optimizer with these parameters and settings on ``world`` ranks. The\n"
           "parameters need no arrays: pass data=None, a dtype and a shape. With\n"
           "device=\"cuda\", no GPU is needed.")
      .def("summary", &summary, nb::sig("def summary(self) -> dict[str, typing.Any]"),
           "Returns a summary of the plan; see muonrt_plan_summary_t.")
      .def("rank", &rank, nb::arg("rank"),
           nb::sig("def rank(self, rank: int) -> dict[str, typing.Any]"),
           "Returns the work and the memory of a rank; see muonrt_plan_rank_t.")
      .def_rw("machine", &PlanOfRanks::machine,
              "The machine that time() uses by default: the name of a machine, or the JSON text\n"
              "of a profile.")
      .def("time", &time, nb::arg("machine") = nb::none(),
           nb::sig("def time(self, machine: str | None = None) -> dict[str, typing.Any]"),
           "Returns the predicted time of a step on a machine; see muonrt_plan_time_t.\n\n"
           ":param machine: name of a machine, such as \"h100\", or the JSON text of a profile.\n"
           "    None selects the machine that was passed to muonrt.plan().")
      .def(
          "describe",
          [](const PlanOfRanks& self, bool json, int64_t max_rows) {
            return self.plan.describe(json ? MUONRT_FORMAT_JSON : MUONRT_FORMAT_TEXT, max_rows);
          },
          nb::arg("json") = false, nb::arg("max_rows") = 0,
          nb::sig("def describe(self, json: bool = False, max_rows: int = 0) -> str"),
          "Returns the plan as text, or as JSON if json is True.\n\n"
          ":param max_rows: maximum number of rows in each table of the text. 0 means no limit.")
      .def(
          "__str__", [](const PlanOfRanks& self) { return self.plan.describe(); },
          nb::sig("def __str__(self) -> str"));
  optimizer.def(
      "plan", [](Optimizer& self) { return PlanOfRanks{self.plan()}; },
      nb::sig("def plan(self) -> Plan"),
      "Returns the plan of this optimizer. The plan remains valid if the optimizer is closed.");
}

}  // namespace binding
