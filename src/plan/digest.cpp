#include "base/hash.hpp"
#include "plan/plan.hpp"

namespace muonrt {

namespace {

template <class E>
int64_t number(E value) {
  return static_cast<int64_t>(value);
}

void feed(Hash& hash, const std::vector<int>& list) {
  hash.value(number(list.size()));
  for (const int v : list) hash.value(number(v));
}

void feed(Hash& hash, const PlanOptions& o) {
  for (const int64_t v :
       {number(o.world), number(o.transport_dtype), o.chunk_bytes, number(o.window),
        number(o.least_part), number(o.commit), number(o.replica_mode), number(o.max_peers)})
    hash.value(v);
  hash.value(number(o.machine.hash()));
}

void feed(Hash& hash, const ParamSpec& spec) {
  hash.bytes(spec.name);
  hash.value(number(spec.layout.hash()));
  hash.value(number(spec.grad_layout ? spec.grad_layout->hash() : 0));
  for (const int64_t v :
       {number(spec.role), number(spec.dtype), number(spec.grad_dtype), number(spec.group),
        number(spec.stack), number(spec.form), number(spec.newton_schulz_steps),
        number(spec.iteration_dtype), number(spec.owner), number(spec.by_callback),
        number(spec.master), number(spec.priority), number(spec.owner_bytes)})
    hash.value(v);
  hash.value(spec.update_scale);
  hash.value(spec.decay_scale);
  hash.value(number(spec.parts.size()));
  for (const MatrixPart& part : spec.parts) {
    hash.bytes(part.name);
    hash.bytes(to_text(part.rows));
    hash.bytes(to_text(part.cols));
    hash.value(part.update_scale);
    hash.value(part.decay_scale);
  }
  feed(hash, spec.gram_restarts);
  if (spec.transposed) hash.bytes("transposed");
  for (const int32_t owner : spec.owners) hash.value(number(owner));
}

void feed(Hash& hash, const Matrix& m) {
  for (const int64_t v : {number(m.owner), number(m.replica), number(m.grad_replica),
                          number(m.chunk), number(m.method.form), number(m.method.steps)})
    hash.value(v);
  feed(hash, m.method.restarts);
}

}  // namespace

uint64_t Plan::hash() const {
  Hash hash;
  feed(hash, problem_.options);
  hash.value(number(problem_.params.size()));
  for (const ParamSpec& spec : problem_.params) feed(hash, spec);
  hash.value(number(matrices_.size()));
  for (const Matrix& m : matrices_) feed(hash, m);
  return hash.digest();
}

}  // namespace muonrt
