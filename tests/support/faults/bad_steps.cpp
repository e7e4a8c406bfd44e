#include "support/faults/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> step_cases() {
  using A = Arguments;
  return {
      {"null step", kInvalid, {"step is null"}, [](A& a) { a.step_given = nullptr; }, true},
      {"step size 0",
       kInvalid,
       {"step", "struct_size is 0"},
       [](A& a) { a.step.struct_size = 0; },
       true},
      {"report size 2",
       kInvalid,
       {"report", "struct_size is 2"},
       [](A& a) { a.report.struct_size = 2; },
       true},
      {"lr not set", kInvalid, {"lr is nan"}, [](A& a) { a.step.lr = kNan; }, true},
      {"negative lr", kInvalid, {"lr is -0.5"}, [](A& a) { a.step.lr = -0.5; }, true},
      {"infinite lr", kInvalid, {"lr is inf"}, [](A& a) { a.step.lr = HUGE_VAL; }, true},
      {"lr beyond f32", kInvalid, {"lr", "1e+39"}, [](A& a) { a.step.lr = 1e39; }, true},
      {"rates without their number",
       kInvalid,
       {"n_group_lrs is 0", "2 groups"},
       [](A& a) { a.step.group_lrs = a.rates; },
       true},
      {"more rates than groups",
       kInvalid,
       {"n_group_lrs is 3"},
       [](A& a) {
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 3;
       },
       true},
      {"number of rates that are null",
       kInvalid,
       {"n_group_lrs is 2 with no list"},
       [](A& a) { a.step.n_group_lrs = 2; },
       true},
      {"negative rate of a group",
       kInvalid,
       {"lr of group 1 is -0.5"},
       [](A& a) {
         a.rates[1] = -0.5;
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 2;
       },
       true},
      {"gradient scale that vanishes",
       kInvalid,
       {"grad_scale_inv"},
       [](A& a) { a.step.grad_scale_inv = 1e-50; },
       true},
      {"gradient scale beyond f32",
       kInvalid,
       {"grad_scale_inv is 1e+300", "use 1"},
       [](A& a) { a.step.grad_scale_inv = 1e300; },
       true},
      {"absurd length of the list",
       kInvalid,
       {"n_without_grad"},
       [](A& a) {
         a.step.without_grad = a.without;
         a.step.n_without_grad = int64_t{1} << 58;
       },
       true},
      {"gradient scale 0",
       kInvalid,
       {"grad_scale_inv is 0"},
       [](A& a) { a.step.grad_scale_inv = 0; },
       true},
      {"null list",
       kInvalid,
       {"n_without_grad is 2"},
       [](A& a) { a.step.n_without_grad = 2; },
       true},
      {"unknown parameter in the list",
       kInvalid,
       {"param index is 3"},
       [](A& a) {
         a.without[0] = 3;
         a.step.without_grad = a.without;
         a.step.n_without_grad = 1;
       },
       true},
      {"null gradient that was not announced",
       kInvalid,
       {"param 'wk'", "grad is null"},
       [](A& a) {
         a.rebind = true;
         a.grad_of_1 = nullptr;
       },
       true},
      {"a stream on the host",
       kInvalid,
       {"stream is given on the host"},
       [](A& a) { a.step.stream = a.without; },
       true},
      {"other lr", kMismatch, {"lr", "0.01", "0.02"}, [](A& a) { a.step.lr = 0.02; }, true},
      {"other rate of a group",
       kMismatch,
       {"lr of group 1", "0.01", "0.02"},
       [](A& a) {
         a.rates[1] = 0.02;
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 2;
       },
       true},
      {"announced on one rank alone",
       kMismatch,
       {"param 'wq'", "takes part", "1", "0"},
       [](A& a) {
         a.without[0] = 0;
         a.step.without_grad = a.without;
         a.step.n_without_grad = 1;
       },
       true},
  };
}

}  // namespace bad_input
