"""rosecourse: a small, exact LLM inference engine, and the lessons that make its decode step fast."""

import lazy_loader

# The public names. Each module is imported when one of its names is first used, so that importing the package costs
# next to nothing.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "config": ["EngineConfig", "SamplingParams"],
        "decode": ["BEST", "DecodeParts"],
        "engine": ["Generation", "InferenceEngine"],
        "errors": [
            "BlockError",
            "ConfigError",
            "KVCacheExhausted",
            "LessonError",
            "ModelError",
            "RequestError",
            "RosecourseError",
            "SchedulerClosed",
        ],
        "kv.blocks": ["KVBlockInfo", "KVBlockManager"],
        "lessons": ["LESSONS", "lesson"],
        "models.load": ["load_model", "random_model"],
        "scheduler": ["OfflineScheduler", "OnlineScheduler"],
        "session": ["InferenceSession"],
        "streaming": ["SchedulerManager", "TokenStream"],
    },
)

__version__ = "0.1.0"
