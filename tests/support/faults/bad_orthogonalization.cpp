#include "support/faults/bad_input.hpp"

namespace bad_input {

std::vector<BadCase> orthogonalization_cases() {
  using A = Arguments;
  return {
      {"you with six steps",
       kInvalid,
       {"group 0", "6 steps", "you"},
       [](A& a) {
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_YOU_JIACHENG;
         a.groups[0].steps = 6;
       }},
      {"inner safety of a printed list",
       kInvalid,
       {"group 0", "keller_jordan", "not generated"},
       [](A& a) {
         a.groups[0].coefficients = MUONRT_COEFFICIENTS_KELLER_JORDAN;
         a.groups[0].safety_mode = MUONRT_SAFETY_INNER;
       }},
      {"a list without headroom",
       kInvalid,
       {"group 0", "headroom"},
       [](A& a) {
         a.groups[0].safety = 1;
         a.groups[0].iteration_dtype = MUONRT_DTYPE_BF16;
       }},
      {"safety below 1", kInvalid, {"safety is 0.5"}, [](A& a) { a.groups[0].safety = 0.5; }},
      {"unknown safety mode",
       kInvalid,
       {"safety_mode is 4"},
       [](A& a) { a.groups[0].safety_mode = 4; }},
      {"unknown normalization",
       kInvalid,
       {"normalize is 3"},
       [](A& a) { a.groups[0].normalize = 3; }},
      {"negative normalization eps",
       kInvalid,
       {"normalize_eps is -1"},
       [](A& a) { a.groups[0].normalize_eps = -1; }},
      {"unknown row scaling",
       kInvalid,
       {"row_scaling is 2"},
       [](A& a) { a.groups[0].row_scaling = 2; }},
      {"unknown iteration dtype",
       kInvalid,
       {"iteration_dtype is 9"},
       [](A& a) { a.groups[0].iteration_dtype = 9; }},
      {"restarts past the last step",
       kInvalid,
       {"group 0", "restarts are [2, 5]", "steps is 5"},
       [](A& a) {
         static const int32_t restarts[] = {2, 5};
         a.groups[0].restarts = restarts;
         a.groups[0].n_restarts = 2;
       }},
      {"restarts without a list",
       kInvalid,
       {"n_restarts is 2", "null"},
       [](A& a) { a.groups[0].n_restarts = 2; }},
      {"no block period",
       kInvalid,
       {"block_period is 0"},
       [](A& a) { a.groups[0].block_period = 0; }},
      {"no blocks", kInvalid, {"block_cols is 0"}, [](A& a) { a.groups[0].block_cols = 0; }},
      {"NaN block rate",
       kInvalid,
       {"block_lr_factor is nan"},
       [](A& a) { a.groups[0].block_lr_factor = kNan; }},
  };
}

}  // namespace bad_input
