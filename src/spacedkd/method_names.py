"""The distillation methods by name, and where each is written; known without importing any of them, or torch."""

from collections.abc import Mapping

METHODS: Mapping[str, str] = {
    "none": "spacedkd.methods.no_kd:NoKD",
    "kd": "spacedkd.methods.kd:KD",
    "hinton": "spacedkd.methods.hinton:Hinton",
    "fitnet": "spacedkd.methods.fitnet:FitNet",
    "lskd": "spacedkd.methods.lskd:LSKD",
    "ctkd": "spacedkd.methods.ctkd:CTKD",
    "dkd": "spacedkd.methods.dkd:DKD",
    "eskd": "spacedkd.methods.eskd:ESKD",
    "shake": "spacedkd.methods.shake:SHAKE",
    "takd": "spacedkd.methods.takd:TAKD",
    "ban": "spacedkd.methods.ban:BAN",
    "dml": "spacedkd.methods.dml:DML",
    "kdcl": "spacedkd.methods.kdcl:KDCL",
    "tsb-like": "spacedkd.methods.tsb:TSB",
    "pcl": "spacedkd.methods.pcl:PCL",
    "one": "spacedkd.methods.one:ONE",
    "self-kd": "spacedkd.methods.self_kd:SelfKD",
    "dlb": "spacedkd.methods.dlb:DLB",
    "ps-kd": "spacedkd.methods.ps_kd:PSKD",
}
