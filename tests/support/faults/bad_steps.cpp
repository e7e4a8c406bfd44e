#include "support/faults/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> step_cases() {
  using A = Arguments;
  return {
      {{"step is null"}, [](A& a) { a.step_given = nullptr; }},
      {{"step", "struct_size is 0"}, [](A& a) { a.step.struct_size = 0; }},
      {{"report", "struct_size is 2"}, [](A& a) { a.report.struct_size = 2; }},
      {{"lr is nan"}, [](A& a) { a.step.lr = kNan; }},
      {{"lr is -0.5"}, [](A& a) { a.step.lr = -0.5; }},
      {{"lr is inf"}, [](A& a) { a.step.lr = HUGE_VAL; }},
      {{"lr", "1e+39"}, [](A& a) { a.step.lr = 1e39; }},
      {{"n_group_lrs is 0", "2 groups"}, [](A& a) { a.step.group_lrs = a.rates; }},
      {{"n_group_lrs is 3"},
       [](A& a) {
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 3;
       }},
      {{"n_group_lrs is 2 with no list"}, [](A& a) { a.step.n_group_lrs = 2; }},
      {{"lr of group 1 is -0.5"},
       [](A& a) {
         a.rates[1] = -0.5;
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 2;
       }},
      {{"grad_scale_inv"}, [](A& a) { a.step.grad_scale_inv = 1e-50; }},
      {{"grad_scale_inv is 1e+300", "use 1"}, [](A& a) { a.step.grad_scale_inv = 1e300; }},
      {{"n_inactive_params"},
       [](A& a) {
         a.step.inactive_params = a.without;
         a.step.n_inactive_params = int64_t{1} << 58;
       }},
      {{"grad_scale_inv is 0"}, [](A& a) { a.step.grad_scale_inv = 0; }},
      {{"n_inactive_params is 2"}, [](A& a) { a.step.n_inactive_params = 2; }},
      {{"step: inactive_params: param index is 3"},
       [](A& a) {
         a.without[0] = 3;
         a.step.inactive_params = a.without;
         a.step.n_inactive_params = 1;
       }},
      {{"step: inactive_params: param index is -1"},
       [](A& a) {
         a.without[0] = -1;
         a.step.inactive_params = a.without;
         a.step.n_inactive_params = 1;
       }},
      {{"param 'wk'", "grad is null"},
       [](A& a) {
         a.rebind = true;
         a.grad_of_1 = nullptr;
       }},
      {{"stream is given on the host"}, [](A& a) { a.step.stream = a.without; }},
      {{"lr", "0.01", "0.02"}, [](A& a) { a.step.lr = 0.02; }, kMismatch},
      {{"lr of group 1", "0.01", "0.02"},
       [](A& a) {
         a.rates[1] = 0.02;
         a.step.group_lrs = a.rates;
         a.step.n_group_lrs = 2;
       },
       kMismatch},
      {{"param 'wq'", "takes part", "1", "0"},
       [](A& a) {
         a.without[0] = 0;
         a.step.inactive_params = a.without;
         a.step.n_inactive_params = 1;
       },
       kMismatch},
  };
}

}  // namespace bad_input
