// The bytes that an ideal operation moves, moved without synchronisation.
#include "tools/system.h"

namespace pycomm::tools {
namespace {

class LimitSystem final : public System {
  public:
    LimitSystem(const MemoryLimit& limit, Stores stores)
        : limit_(limit),
          stores_(stores),
          name_(stores == Stores::streaming ? "streaming" : "ordinary") {}

    const std::string& name() const override { return name_; }
    std::string obstacle(const Case& c) const override {
        return MemoryLimit::applies(c.kind) ? "" : "it moves no data";
    }
    void settle() override {}

    std::function<void()> bind(const Case& c, const Buffers& /*buffers*/) override {
        if (c.kind != OpKind::send) return limit_.bind({c.kind, c.bytes(), c.root}, stores_);
        if (!c.takes_part()) return [] {};
        return [there = limit_.bind({c.kind, c.bytes(), 0, {0, 1}}, stores_),
                back = limit_.bind({c.kind, c.bytes(), 0, {1, 0}}, stores_)] {
            there();
            back();
        };
    }

  private:
    const MemoryLimit& limit_;
    const Stores stores_;
    const std::string name_;
};

}  // namespace

std::unique_ptr<System> make_limit_system(const MemoryLimit& limit, Stores stores) {
    return std::make_unique<LimitSystem>(limit, stores);
}

}  // namespace pycomm::tools
